// What a kernel reads too early, it reads as it was: copies that come late in a kernel whose next one has long begun, and thread blocks
// of one kernel that come late, since few of them run at a time.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

namespace fovea::testing {

struct LateCopy {
  void* to;
  const void* from;
  int64_t bytes;  // a multiple of 4
};

// In one kernel, which lets the next begin at once and writes 200 microseconds later. Up to eight.
void copy_late(const std::vector<LateCopy>& copies, cudaStream_t stream);

// For 200 microseconds `free` multiprocessors alone have room for a thread block that needs shared memory.
void hold_multiprocessors_but(int32_t free, cudaStream_t stream);

}  // namespace fovea::testing
