#include "store/store_directory.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include <fcntl.h>
#include <unistd.h>

namespace fovea {
namespace {

constexpr std::string_view kFormat = "fovea-kv 1\n";
constexpr std::string_view kSlabEnd = ".slab";
constexpr size_t kBadKept = 8;
constexpr std::string_view kUsageMagic = "FVUSAGE1";

std::string hex(uint64_t value, int digits) {
  char text[17];
  std::snprintf(text, sizeof text, "%0*llx", digits, static_cast<unsigned long long>(value));
  return text;
}

// The number of "<16 hex>.slab"; false: another name.
bool parse_name(std::string_view name, uint64_t* number) {
  if (name.size() != 16 + kSlabEnd.size() || !name.ends_with(kSlabEnd)) return false;
  const auto [end, error] = std::from_chars(name.data(), name.data() + 16, *number, 16);
  return error == std::errc() && end == name.data() + 16;
}

int list(FileSystem& fs, const std::string& path, std::vector<std::string>* names) {
  return uninterrupted([&] { return fs.list(path, names); });
}

std::string parent_of(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

// What is made lasts through a power failure.
Status make_folders(FileSystem& fs, const std::string& path) {
  for (size_t at = 1; at <= path.size(); ++at) {
    if (at < path.size() && path[at] != '/') continue;
    const int result = uninterrupted([&] { return fs.mkdir(path.substr(0, at)); });
    if (at == path.size() && result != -EEXIST) FOVEA_TRY(os_status(result, path));  // above it: the last one tells
    if (result >= 0) FOVEA_TRY(sync_folder(fs, parent_of(path.substr(0, at))));
  }
  return {};
}

uint64_t get64(const char* at) {
  uint64_t value = 0;
  for (int i = 0; i < 8; ++i) value |= uint64_t{static_cast<uint8_t>(at[i])} << (8 * i);
  return value;
}

void put64(std::string* out, uint64_t value) {
  for (int i = 0; i < 8; ++i) out->push_back(static_cast<char>(value >> (8 * i)));
}

}  // namespace

Result<StoreDirectory> StoreDirectory::open(FileSystem& fs, const std::string& dir, bool readonly) {
  StoreDirectory out(fs, dir);
  if (!readonly) FOVEA_TRY(make_folders(fs, dir));
  bool is_new = false;
  FOVEA_TRY(out.check_format(&is_new));
  if (readonly) {
    if (is_new) return Status::not_found(dir + ": no store (it has no file FORMAT)");
    return out;
  }
  FOVEA_TRY(out.take_lock());
  FOVEA_TRY(out.prepare(is_new));
  return out;
}

// A folder of something else must not be taken for a store: its tmp/ would be emptied.
Status StoreDirectory::check_format(bool* is_new) const {
  std::vector<std::string> names;
  FOVEA_TRY(os_status(list(*fs_, dir_, &names), dir_));
  const auto format = read_small_file(*fs_, dir_ + "/FORMAT");
  if (format.ok()) {
    if (*format == kFormat) return {};
    return Status::unsupported(dir_ + "/FORMAT: not \"fovea-kv 1\": a store of another version, or none");
  }
  if (format.status().code() != StatusCode::not_found) return format.status();
  for (const std::string& name : names) {
    if (name != "LOCK" && name != "FORMAT.new")
      return Status::invalid_argument(dir_ + ": not empty, and not a store: no file FORMAT");
  }
  *is_new = true;
  return {};
}

Status StoreDirectory::take_lock() {
  const std::string path = dir_ + "/LOCK";
  FOVEA_ASSIGN(lock_, open_file(*fs_, path, O_RDWR | O_CREAT));
  const int result = uninterrupted([&] { return fs_->lock(lock_.fd()); });
  if (result == -EWOULDBLOCK) {
    auto holder = read_small_file(*fs_, path);
    const std::string pid = holder.ok() ? holder->substr(0, holder->find(' ')) : "unknown";
    return Status::busy(dir_ + ": process " + pid + " is writing this store (LOCK)");
  }
  FOVEA_TRY(os_status(result, path));
  std::string pid = std::to_string(::getpid());
  pid.resize(15, ' ');
  pid.push_back('\n');
  return lock_.write(0, std::as_bytes(std::span(pid))).with_context(path);
}

Status StoreDirectory::prepare(bool is_new) {
  if (is_new) {  // first: without it the rest is not known for a store's
    FOVEA_TRY(replace_file(*fs_, dir_ + "/FORMAT", dir_ + "/FORMAT.new", kFormat, /*sync=*/true));
    FOVEA_TRY(sync_folder(*fs_, dir_));
  }
  for (const char* name : {"/slabs", "/tmp"}) FOVEA_TRY(make_folders(*fs_, dir_ + name));
  FOVEA_ASSIGN(const std::vector<std::string> left, unfinished());
  for (const std::string& name : left) {
    const std::string path = dir_ + "/tmp/" + name;
    FOVEA_TRY(os_status(uninterrupted([&] { return fs_->unlink(path); }), path));
  }
  return {};
}

std::string StoreDirectory::slab_folder(uint64_t number) const { return dir_ + "/slabs/" + hex(number & 255, 2); }
std::string StoreDirectory::slab_path(uint64_t number) const {
  return slab_folder(number) + "/" + hex(number, 16) + std::string(kSlabEnd);
}
std::string StoreDirectory::tmp_path(uint64_t number) const { return dir_ + "/tmp/" + hex(number, 16); }

Result<std::vector<uint64_t>> StoreDirectory::slabs() const {
  std::vector<std::string> folders, names;
  const int listed = list(*fs_, dir_ + "/slabs", &folders);
  if (listed != -ENOENT) FOVEA_TRY(os_status(listed, dir_ + "/slabs"));
  std::vector<uint64_t> numbers;
  for (const std::string& folder : folders) {
    FOVEA_TRY(os_status(list(*fs_, dir_ + "/slabs/" + folder, &names), dir_ + "/slabs/" + folder));
    for (const std::string& name : names) {
      uint64_t number;
      if (parse_name(name, &number) && hex(number & 255, 2) == folder) numbers.push_back(number);
    }
  }
  std::ranges::sort(numbers);
  return numbers;
}

Result<std::vector<std::string>> StoreDirectory::unfinished() const {
  std::vector<std::string> names;
  const int listed = list(*fs_, dir_ + "/tmp", &names);
  if (listed != -ENOENT) FOVEA_TRY(os_status(listed, dir_ + "/tmp"));
  return names;
}

Result<File> StoreDirectory::open_slab(uint64_t number, bool direct) const {
  FOVEA_ASSIGN(File file, open_file(*fs_, slab_path(number), O_RDONLY | (direct ? O_DIRECT : 0)));
  if (!direct) fs_->advise(file.fd(), POSIX_FADV_RANDOM);  // advice: its failure costs time alone
  return file;
}

uint64_t StoreDirectory::slab_bytes(uint64_t number) const {
  const auto file = open_slab(number, false);
  const auto bytes = file.ok() ? file->size() : file.status();
  return bytes.ok() ? *bytes : 0;
}

Result<SlabFront> StoreDirectory::read_front(uint64_t number) const {
  const std::string path = slab_path(number);
  FOVEA_ASSIGN(const File file, open_slab(number, false));
  FOVEA_ASSIGN(const uint64_t bytes, file.size());
  std::vector<std::byte> front(std::min<uint64_t>(bytes, kSlabFrontMax));
  FOVEA_TRY(file.read(0, front).with_context(path));
  auto parsed = parse_front(front, bytes, number);
  if (!parsed.ok()) return parsed.status().with_context(path);
  return parsed;
}

Status StoreDirectory::make_slab_folder(uint64_t number) const {
  const int result = uninterrupted([&] { return fs_->mkdir(slab_folder(number)); });
  return result == -EEXIST ? Status() : os_status(result, slab_folder(number));
}

Status StoreDirectory::sync_slab_folder(uint64_t number) const {
  FOVEA_TRY(sync_folder(*fs_, slab_folder(number)));
  return sync_folder(*fs_, dir_ + "/slabs");  // which may be new to it
}

void StoreDirectory::set_aside(uint64_t number) const {
  fs_->mkdir(dir_ + "/bad");
  const std::string name = hex(number, 16) + std::string(kSlabEnd);
  if (fs_->rename(slab_path(number), dir_ + "/bad/" + name) < 0) return;  // it stays; the next opening tries again
  const std::vector<std::string> names = bad();
  for (size_t i = 0; i + kBadKept < names.size(); ++i) fs_->unlink(dir_ + "/bad/" + names[i]);
}

std::vector<std::string> StoreDirectory::bad() const {
  std::vector<std::string> names;
  list(*fs_, dir_ + "/bad", &names);
  return names;
}

void StoreDirectory::remove_bad() const {
  for (const std::string& name : bad()) fs_->unlink(dir_ + "/bad/" + name);
}

StoreDirectory::Usage StoreDirectory::read_usage() const {
  const auto bytes = read_small_file(*fs_, dir_ + "/usage");
  return bytes.ok() ? parse_usage(*bytes) : Usage();
}

Status StoreDirectory::write_usage(const Usage& usage) const {
  return replace_file(*fs_, dir_ + "/usage", dir_ + "/tmp/usage", encode_usage(usage), /*sync=*/false);
}

std::string encode_usage(const StoreDirectory::Usage& usage) {
  std::string out(kUsageMagic);
  for (const auto& [number, used_s] : usage) {
    put64(&out, number);
    put64(&out, used_s);
  }
  const Digest128 digest = plain_digest(std::as_bytes(std::span(out)));
  out.append(reinterpret_cast<const char*>(digest.data()), digest.size());
  return out;
}

StoreDirectory::Usage parse_usage(std::string_view bytes) {
  if (bytes.size() < kUsageMagic.size() + sizeof(Digest128) || !bytes.starts_with(kUsageMagic)) return {};
  const std::string_view body = bytes.substr(0, bytes.size() - sizeof(Digest128));
  const Digest128 digest = plain_digest(std::as_bytes(std::span(body)));
  if ((body.size() - kUsageMagic.size()) % 16 != 0) return {};
  if (std::memcmp(digest.data(), bytes.data() + body.size(), digest.size()) != 0) return {};
  StoreDirectory::Usage usage;
  for (size_t at = kUsageMagic.size(); at < body.size(); at += 16) usage[get64(&body[at])] = get64(&body[at + 8]);
  return usage;
}

}  // namespace fovea
