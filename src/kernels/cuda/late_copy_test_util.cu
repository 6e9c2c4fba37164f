#include "kernels/cuda/late_copy_test_util.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/launch.h"

namespace fovea::testing {
namespace {

constexpr size_t kMost = 8;
struct LateCopies {
  LateCopy copies[kMost];
};

__device__ uint64_t now() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns)::"memory");
  return ns;
}

__global__ void late(const LateCopies all) {
  cuda::let_next_begin();
  const uint64_t begin = now();
  while (now() - begin < 200'000) {
  }
  __syncthreads();
  for (const LateCopy& copy : all.copies) {
    for (int64_t i = threadIdx.x; i < copy.bytes / 4; i += blockDim.x) {
      static_cast<uint32_t*>(copy.to)[i] = static_cast<const uint32_t*>(copy.from)[i];
    }
  }
}

}  // namespace

void copy_late(const std::vector<LateCopy>& copies, cudaStream_t stream) {
  FOVEA_CHECK(copies.size() <= kMost);
  LateCopies all{};
  std::copy(copies.begin(), copies.end(), all.copies);
  late<<<1, 1024, 0, stream>>>(all);
  cuda::check_launch("late copies");
}

}  // namespace fovea::testing
