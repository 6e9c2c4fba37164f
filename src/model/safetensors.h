// Strict reader of safetensors weights (https://github.com/huggingface/safetensors, "Format"), memory-mapped.
//
// A file is: header length (u64, little endian), header (JSON object), data. The header maps each tensor's
// name to its dtype, shape and [begin, end) byte range within the data. A range must equal dtype x shape, and
// together the ranges must cover the data exactly: no overlap, no gap, no tail. Anything else is refused with
// one line naming file, tensor, field and value. Nothing is copied, except a tensor that the file does not
// align to its element size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fovea/status.h>
#include <fovea/types.h>
#include "model/mapped_file.h"
#include "model/tensor_source.h"

namespace fovea {

constexpr uint64_t kSafetensorsHeaderBytesMax = 100'000'000;  // the format's own limit
constexpr size_t kSafetensorsRankMax = 16;

// One tensor as the header states it, its byte range checked against its dtype and shape.
struct SafetensorsEntry {
  std::string dtype;           // as written: "BF16"
  std::vector<int64_t> shape;  // empty: a scalar
  uint64_t begin = 0;          // bytes from the start of the data
  uint64_t end = 0;            // one past the last byte
};

struct SafetensorsHeader {
  std::map<std::string, SafetensorsEntry> tensors;
  std::map<std::string, std::string> metadata;  // "__metadata__", strings only
};

// Pure: no file, no allocation beyond the header's own size. `data_bytes`: how many bytes follow the header.
// `name` leads every error. Errors: corrupt.
Result<SafetensorsHeader> parse_safetensors_header(std::string_view header_json, uint64_t data_bytes, const std::string& name);

class SafetensorsFile {
 public:
  // Errors: not_found, io_error, corrupt, resource_exhausted (no memory for an aligned copy).
  static Result<std::unique_ptr<SafetensorsFile>> open(const std::string& path);

  const TensorInfo* find(const std::string& name) const;  // null: not there
  const std::map<std::string, TensorInfo>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::string& path() const { return path_; }
  std::string_view header_bytes() const { return mapping_->bytes().substr(8, header_bytes_); }
  std::string_view data_bytes() const { return mapping_->bytes().substr(8 + header_bytes_); }

 private:
  SafetensorsFile() = default;
  Status index(SafetensorsHeader header);

  std::string path_;
  std::unique_ptr<MappedFile> mapping_;  // never null
  size_t header_bytes_ = 0;
  std::map<std::string, TensorInfo> tensors_;
  std::map<std::string, std::string> metadata_;
  std::vector<std::unique_ptr<uint64_t[]>> aligned_copies_;  // of tensors the file misaligns
};

// Of model.safetensors.index.json: the names of the tensors that each shard must hold, by the shard's file name. Pure.
// Errors: corrupt.
Result<std::map<std::string, std::vector<std::string>>> parse_safetensors_index(std::string_view text, const std::string& name);

// All weights of a model directory: model.safetensors, else the shards that model.safetensors.index.json names.
class SafetensorsSource final : public TensorSource {
 public:
  static Result<std::unique_ptr<SafetensorsSource>> open(const std::string& model_dir);

  const TensorInfo* find(const std::string& name) const override;
  std::vector<std::string> names() const override;
  std::vector<File> files() const override;
  const std::string& source() const override { return source_; }

 private:
  SafetensorsSource() = default;
  Status open_shards(const std::string& model_dir);
  Status add_shard(const std::string& model_dir, const std::string& shard, const std::vector<std::string>& wanted);

  std::string source_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;  // ascending by file name
  std::map<std::string, const TensorInfo*> tensors_;
};

// "[4096, 384]", for error lines.
std::string shape_text(std::span<const int64_t> shape);

}  // namespace fovea
