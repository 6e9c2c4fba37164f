// The operating system as a store of files needs it: a seam, so that tests can make any call fail (fault_fs.h). Calls are those
// of POSIX, with their results: >= 0, or -errno; they may be interrupted and may read or write less than was asked. Thread-safe.
#pragma once

#include "store/aligned_buffer.h"
#include "store/io_engine.h"

#include <fovea/status.h>

#include <sys/uio.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace fovea {

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual int open(const std::string& path, int flags) = 0;  // creates with 0600
  virtual int close(int fd) = 0;
  virtual int64_t preadv(int fd, std::span<const iovec> to, uint64_t offset) = 0;
  // What lies in memory and needs no waiting for a disk: less than was asked, or -errno, where that is not all of it.
  virtual int64_t preadv_cached(int fd, std::span<const iovec> to, uint64_t offset) = 0;
  virtual int64_t pwrite(int fd, std::span<const std::byte> from, uint64_t offset) = 0;
  virtual int64_t size(int fd) = 0;
  virtual int fsync(int fd, bool data_only) = 0;
  virtual int lock(int fd) = 0;                // flock, exclusive, without waiting
  virtual int advise(int fd, int advice) = 0;  // posix_fadvise of the whole file
  virtual int rename(const std::string& from, const std::string& to) = 0;
  virtual int unlink(const std::string& path) = 0;
  virtual int mkdir(const std::string& path) = 0;  // with 0700
  // Names in a folder, without . and .., sorted.
  virtual int list(const std::string& path, std::vector<std::string>* names) = 0;
  // What a thread reads through, `depth` I/Os at a time at most; `threads`: where io_uring is refused.
  virtual std::unique_ptr<IoEngine> make_engine(int depth, int threads) = 0;
};

// The real one.
FileSystem& posix_file_system();

// An open file, closed by its destructor.
class File {
 public:
  File() = default;
  File(FileSystem& fs, int fd) : fs_(&fs), fd_(fd) {}
  File(File&& other) noexcept : fs_(other.fs_), fd_(std::exchange(other.fd_, -1)) {}
  File& operator=(File&& other) noexcept {
    std::swap(fs_, other.fs_);
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~File() {
    if (fd_ >= 0) fs_->close(fd_);
  }
  int fd() const { return fd_; }

  // All of it, through interrupts and short calls. corrupt: the file ends before.
  Status read(uint64_t offset, std::span<std::byte> to) const;
  Status write(uint64_t offset, std::span<const std::byte> from) const;
  Result<uint64_t> size() const;
  Status sync(bool data_only) const;

 private:
  FileSystem* fs_ = nullptr;
  int fd_ = -1;
};

// A call again and again while it is interrupted.
template <typename Call>
auto uninterrupted(Call&& call) {
  auto result = call();
  while (result == -EINTR) result = call();
  return result;
}

// not_found where there is none; every other error is io_error, or resource_exhausted where the disk is full. Named by the path.
Result<File> open_file(FileSystem& fs, const std::string& path, int flags);
// -errno as a Status; ok for >= 0.
Status os_status(int64_t result, const std::string& what);
// The whole of a small file.
Result<std::string> read_small_file(FileSystem& fs, const std::string& path);
// Through a new file beside it and a rename, so that it is old or new, never half. `temporary`: its path.
Status replace_file(FileSystem& fs, const std::string& path, const std::string& temporary, std::string_view bytes, bool sync);
Status sync_folder(FileSystem& fs, const std::string& path);

}  // namespace fovea
