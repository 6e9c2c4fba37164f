// A whole file, mapped to be read.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include <fovea/status.h>

namespace fovea {

class MappedFile {
 public:
  // Errors: not_found, io_error, invalid_argument (no regular file), corrupt (shorter than bytes_min, which is 1 at least).
  static Result<std::unique_ptr<MappedFile>> open(const std::string& path, size_t bytes_min);
  MappedFile(void* at, size_t bytes) : at_(at), bytes_(bytes) {}
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::string_view bytes() const { return {static_cast<const char*>(at_), bytes_}; }  // begins at a page

 private:
  void* at_;
  size_t bytes_;
};

}  // namespace fovea
