#include "model/safetensors.h"

#include <cstring>
#include <new>
#include <utility>

#include "model/json_reader.h"

namespace fovea {
namespace {

constexpr size_t kLengthBytes = 8;

struct ReadableDType {
  std::string_view name;
  DType dtype;
};
constexpr ReadableDType kReadable[] = {
    {"F32", DType::f32}, {"F16", DType::f16}, {"BF16", DType::bf16}, {"F8_E4M3", DType::fp8_e4m3}};

uint64_t load_le64(const unsigned char* p) {
  uint64_t v = 0;
  for (int i = 7; i >= 0; --i) v = v << 8 | p[i];
  return v;
}

}  // namespace

Status SafetensorsFile::index(SafetensorsHeader header) {
  const std::string_view data = data_bytes();
  for (auto& [name, entry] : header.tensors) {
    TensorInfo info;
    info.name = name;
    info.file = path_;
    info.bytes = entry.end - entry.begin;
    info.data = info.bytes == 0 ? nullptr : data.data() + entry.begin;
    info.shape = std::move(entry.shape);
    for (const ReadableDType& r : kReadable) {
      if (r.name != entry.dtype) continue;
      info.readable = true;
      info.dtype = r.dtype;
    }
    info.stored_dtype = std::move(entry.dtype);
    const size_t step = info.readable ? dtype_bytes(info.dtype) : info.stored_dtype == "I32" ? sizeof(int32_t) : 1;
    if (reinterpret_cast<uintptr_t>(info.data) % step != 0) {
      std::unique_ptr<uint64_t[]> copy(new (std::nothrow) uint64_t[(info.bytes + 7) / 8]);
      if (!copy) {
        return Status::resource_exhausted(path_ + ": tensor " + quote_name(name) + ": no memory to align " +
                                          std::to_string(info.bytes) + " bytes");
      }
      std::memcpy(copy.get(), info.data, info.bytes);
      info.data = copy.get();
      aligned_copies_.push_back(std::move(copy));
    }
    tensors_.emplace(name, std::move(info));
  }
  metadata_ = std::move(header.metadata);
  return Status();
}

Result<std::unique_ptr<SafetensorsFile>> SafetensorsFile::open(const std::string& path) {
  std::unique_ptr<SafetensorsFile> file(new SafetensorsFile());
  file->path_ = path;
  FOVEA_ASSIGN(file->mapping_, MappedFile::open(path, kLengthBytes));
  const std::string_view bytes = file->mapping_->bytes();
  const uint64_t length = load_le64(reinterpret_cast<const unsigned char*>(bytes.data()));
  const uint64_t room = bytes.size() - kLengthBytes;
  if (length > kSafetensorsHeaderBytesMax) {
    return Status::corrupt(path + ": header length " + std::to_string(length) + " is above the limit of " +
                           std::to_string(kSafetensorsHeaderBytesMax));
  }
  if (length > room) {
    return Status::corrupt(path + ": header length " + std::to_string(length) + " exceeds the " + std::to_string(room) +
                           " bytes that follow it (truncated file?)");
  }
  file->header_bytes_ = length;
  FOVEA_ASSIGN(SafetensorsHeader header, parse_safetensors_header(file->header_bytes(), file->data_bytes().size(), path));
  FOVEA_TRY(file->index(std::move(header)));
  return file;
}

const TensorInfo* SafetensorsFile::find(const std::string& name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

Result<std::unique_ptr<SafetensorsSource>> SafetensorsSource::open(const std::string& model_dir) {
  std::unique_ptr<SafetensorsSource> map(new SafetensorsSource());
  const std::string single = model_dir + "/model.safetensors";
  const std::string index = single + ".index.json";
  if (file_exists(single)) {
    map->source_ = single;
    FOVEA_ASSIGN(std::unique_ptr<SafetensorsFile> file, SafetensorsFile::open(single));
    for (const auto& [name, info] : file->tensors()) map->tensors_.emplace(name, &info);
    map->files_.push_back(std::move(file));
  } else if (file_exists(index)) {
    map->source_ = index;
    FOVEA_TRY(map->open_shards(model_dir));
  } else {
    return Status::not_found(model_dir + ": neither model.safetensors nor model.safetensors.index.json is there");
  }
  return map;
}

Status SafetensorsSource::open_shards(const std::string& model_dir) {
  FOVEA_ASSIGN(const std::string text, read_file(source_));
  FOVEA_ASSIGN(const auto by_shard, parse_safetensors_index(text, source_));
  for (const auto& [shard, wanted] : by_shard) FOVEA_TRY(add_shard(model_dir, shard, wanted));
  return Status();
}

Status SafetensorsSource::add_shard(const std::string& model_dir, const std::string& shard,
                                    const std::vector<std::string>& wanted) {
  const std::string path = model_dir + "/" + shard;
  if (!file_exists(path)) {
    return Status::not_found(source_ + ": shard " + quote_name(shard) + " is not in the model's directory");
  }
  FOVEA_ASSIGN(std::unique_ptr<SafetensorsFile> file, SafetensorsFile::open(path));
  for (const auto& [name, info] : file->tensors()) {
    for (const auto& other : files_) {
      if (other->find(name) == nullptr) continue;
      return Status::corrupt(path + ": tensor " + quote_name(name) + " is in " + other->path() + " too");
    }
  }
  for (const std::string& name : wanted) {
    const TensorInfo* info = file->find(name);
    if (info == nullptr) {
      return Status::corrupt(source_ + ": tensor " + quote_name(name) + " is not in its shard " + quote_name(shard));
    }
    tensors_.emplace(name, info);
  }
  files_.push_back(std::move(file));
  return Status();
}

const TensorInfo* SafetensorsSource::find(const std::string& name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : it->second;
}

std::vector<std::string> SafetensorsSource::names() const {
  std::vector<std::string> out;
  out.reserve(tensors_.size());
  for (const auto& [name, info] : tensors_) out.push_back(name);
  return out;
}

std::vector<TensorSource::File> SafetensorsSource::files() const {
  std::vector<File> out;
  for (const auto& f : files_) out.push_back({f->path().substr(f->path().rfind('/') + 1), f->header_bytes(), f->data_bytes()});
  return out;
}

}  // namespace fovea
