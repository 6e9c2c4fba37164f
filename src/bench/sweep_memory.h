// SweepMemory: what a read sweep reads to find the speed of memory. In huge pages, as weights and the cache are: over pages of 4 KiB
// the sweep waits for address translations, and is no ceiling. Three times the last-level cache or more: what that holds is read
// faster than memory (36 GB/s instead of 31 where it has 480 MiB).
#pragma once

#include "base/mapped_buffer.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>

namespace fovea {

class SweepMemory {
 public:
  SweepMemory() { std::fill_n(reinterpret_cast<float*>(mapped_.data()), bytes_ / 4, 1.0f); }
  const void* data() const { return mapped_.data(); }
  int64_t bytes() const { return bytes_; }

 private:
  // sysconf says 0 or less where it does not know.
  int64_t bytes_ = std::max(int64_t{256} << 20, 3 * static_cast<int64_t>(sysconf(_SC_LEVEL3_CACHE_SIZE)));
  MappedBuffer mapped_{static_cast<size_t>(bytes_)};
};

}  // namespace fovea
