// SweepMemory: what a read sweep reads to find the speed of memory. In huge pages, as weights and the cache are: over pages of 4 KiB
// the sweep waits for address translations, and is no ceiling. Three times the last-level cache or more: what that holds is read
// faster than memory (36 GB/s instead of 31 where it has 480 MiB).
#pragma once

#include "base/mapped_buffer.h"
#include "base/thread_pool.h"
#include "kernels/cpu/ceilings.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>

namespace fovea {

class SweepMemory {
 public:
  SweepMemory() { std::fill_n(reinterpret_cast<float*>(mapped_.data()), bytes_ / 4, 1.0f); }
  int64_t bytes() const { return bytes_; }
  // Reads it once, by one of cpu::kSweepWays, and leaves all threads awake. Their parts end further apart than a thread waits awake, and
  // to wake takes 50 to 80 us, which what is timed next would be charged with: in a step it follows another operation.
  void sweep(int way, ThreadPool& pool) const {
    (void)cpu::read_sweep(mapped_.data(), bytes_, way, pool);
    pool.parallel_for(pool.size(), [](int64_t, int) {});
  }

 private:
  // sysconf says 0 or less where it does not know.
  int64_t bytes_ = std::max(int64_t{256} << 20, 3 * static_cast<int64_t>(sysconf(_SC_LEVEL3_CACHE_SIZE)));
  MappedBuffer mapped_{static_cast<size_t>(bytes_)};
};

}  // namespace fovea
