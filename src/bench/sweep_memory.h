// SweepMemory: what a read sweep reads to find the speed of memory. In huge pages, as weights and the cache are: over pages of 4 KiB
// the sweep waits for address translations, and is no ceiling.
#pragma once

#include "base/mapped_buffer.h"

#include <algorithm>
#include <cstdint>

namespace fovea {

class SweepMemory {
 public:
  explicit SweepMemory(int64_t bytes) : mapped_(static_cast<size_t>(bytes)), bytes_(bytes) {
    std::fill_n(reinterpret_cast<float*>(mapped_.data()), bytes / 4, 1.0f);
  }
  const void* data() const { return mapped_.data(); }
  int64_t bytes() const { return bytes_; }

 private:
  MappedBuffer mapped_;
  int64_t bytes_;
};

}  // namespace fovea
