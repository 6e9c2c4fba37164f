#include "store/file_system.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace fovea {
namespace {


template <typename Int>
Int or_errno(Int result) {
  return result >= 0 ? result : -static_cast<Int>(errno);
}

class PosixFileSystem final : public FileSystem {
 public:
  int open(const std::string& path, int flags) override { return or_errno(::open(path.c_str(), flags | O_CLOEXEC, 0600)); }
  int close(int fd) override { return or_errno(::close(fd)); }
  int64_t preadv(int fd, std::span<const iovec> to, uint64_t offset) override {
    return or_errno<int64_t>(::preadv(fd, to.data(), static_cast<int>(to.size()), static_cast<off_t>(offset)));
  }
  int64_t preadv_cached(int fd, std::span<const iovec> to, uint64_t offset) override {
    const int count = static_cast<int>(to.size());
    return or_errno<int64_t>(::preadv2(fd, to.data(), count, static_cast<off_t>(offset), RWF_NOWAIT));
  }
  int64_t pwrite(int fd, std::span<const std::byte> from, uint64_t offset) override {
    return or_errno<int64_t>(::pwrite(fd, from.data(), from.size(), static_cast<off_t>(offset)));
  }
  int64_t size(int fd) override {
    struct stat s;
    return ::fstat(fd, &s) == 0 ? s.st_size : -errno;
  }
  int fsync(int fd, bool data_only) override { return or_errno(data_only ? ::fdatasync(fd) : ::fsync(fd)); }
  int lock(int fd) override { return or_errno(::flock(fd, LOCK_EX | LOCK_NB)); }
  int advise(int fd, int advice) override { return -::posix_fadvise(fd, 0, 0, advice); }
  int rename(const std::string& from, const std::string& to) override { return or_errno(::rename(from.c_str(), to.c_str())); }
  int unlink(const std::string& path) override { return or_errno(::unlink(path.c_str())); }
  int mkdir(const std::string& path) override { return or_errno(::mkdir(path.c_str(), 0700)); }
  int list(const std::string& path, std::vector<std::string>* names) override {
    names->clear();
    DIR* folder = ::opendir(path.c_str());
    if (!folder) return -errno;
    errno = 0;
    while (const dirent* entry = ::readdir(folder)) {
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") names->emplace_back(name);
    }
    const int result = -errno;
    ::closedir(folder);
    std::ranges::sort(*names);
    return result;
  }
  std::unique_ptr<IoEngine> make_engine(int depth, int threads) override {
    if (auto ring = make_uring_engine(depth)) return ring;
    return make_pread_engine(*this, depth, threads);
  }
};

}  // namespace

FileSystem& posix_file_system() {
  static PosixFileSystem fs;
  return fs;
}

Status os_status(int64_t result, const std::string& what) {
  if (result >= 0) return {};
  const int error = static_cast<int>(-result);
  const std::string message = what + ": " + std::strerror(error);
  if (error == ENOENT) return Status::not_found(message);
  if (error == ENOSPC || error == EDQUOT || error == EMFILE || error == ENFILE) return Status::resource_exhausted(message);
  return Status::io_error(message);
}

Status File::read(uint64_t offset, std::span<std::byte> to) const {
  while (!to.empty()) {
    const iovec piece{to.data(), to.size()};
    const int64_t n = uninterrupted([&] { return fs_->preadv(fd_, {&piece, 1}, offset); });
    FOVEA_TRY(os_status(n, "read"));
    if (n == 0) return Status::corrupt("the file ends at " + std::to_string(offset));
    to = to.subspan(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
  return {};
}

Status File::write(uint64_t offset, std::span<const std::byte> from) const {
  while (!from.empty()) {
    const int64_t n = uninterrupted([&] { return fs_->pwrite(fd_, from, offset); });
    FOVEA_TRY(os_status(n == 0 ? -EIO : n, "write"));
    from = from.subspan(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
  return {};
}

Result<uint64_t> File::size() const {
  const int64_t n = uninterrupted([&] { return fs_->size(fd_); });
  FOVEA_TRY(os_status(n, "size"));
  return static_cast<uint64_t>(n);
}

Status File::sync(bool data_only) const {
  return os_status(uninterrupted([&] { return fs_->fsync(fd_, data_only); }), "sync");
}

Result<File> open_file(FileSystem& fs, const std::string& path, int flags) {
  const int fd = uninterrupted([&] { return fs.open(path, flags); });
  FOVEA_TRY(os_status(fd, path));
  return File(fs, fd);
}

Result<std::string> read_small_file(FileSystem& fs, const std::string& path) {
  FOVEA_ASSIGN(const File file, open_file(fs, path, O_RDONLY));
  FOVEA_ASSIGN(const uint64_t bytes, file.size());
  if (bytes > (64u << 20)) return Status::corrupt(path + ": " + std::to_string(bytes) + " bytes");
  std::string out(bytes, '\0');
  FOVEA_TRY(file.read(0, std::as_writable_bytes(std::span(out))).with_context(path));
  return out;
}

Status replace_file(FileSystem& fs, const std::string& path, const std::string& temporary, std::string_view bytes, bool sync) {
  const Status written = [&]() -> Status {
    FOVEA_ASSIGN(const File file, open_file(fs, temporary, O_WRONLY | O_CREAT | O_TRUNC));
    FOVEA_TRY(file.write(0, std::as_bytes(std::span(bytes))));
    if (sync) FOVEA_TRY(file.sync(false));
    return os_status(uninterrupted([&] { return fs.rename(temporary, path); }), "rename");
  }();
  if (!written.ok()) fs.unlink(temporary);
  return written.with_context(path);
}

Status sync_folder(FileSystem& fs, const std::string& path) {
  FOVEA_ASSIGN(const File folder, open_file(fs, path, O_RDONLY | O_DIRECTORY));
  return folder.sync(false).with_context(path);
}

}  // namespace fovea
