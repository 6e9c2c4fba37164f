#include "model/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace fovea {
namespace {

Status errno_status(const std::string& path, int error) {
  const std::string message = path + ": " + std::strerror(error);
  return error == ENOENT || error == ENOTDIR ? Status::not_found(message) : Status::io_error(message);
}

}  // namespace

Result<std::unique_ptr<MappedFile>> MappedFile::open(const std::string& path, size_t bytes_min) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return errno_status(path, errno);
  if (!S_ISREG(info.st_mode)) return Status::invalid_argument(path + ": not a regular file");
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno_status(path, errno);
  if (::fstat(fd, &info) != 0) {
    const int error = errno;
    ::close(fd);
    return errno_status(path, error);
  }
  const auto bytes = static_cast<size_t>(info.st_size);
  if (bytes < bytes_min) {
    ::close(fd);
    return Status::corrupt(path + ": file of " + std::to_string(bytes) + " bytes is too short for its header");
  }
  void* at = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
  const int error = errno;
  ::close(fd);
  if (at == MAP_FAILED) return errno_status(path, error);
  return std::make_unique<MappedFile>(at, bytes);
}

MappedFile::~MappedFile() { ::munmap(at_, bytes_); }

}  // namespace fovea
