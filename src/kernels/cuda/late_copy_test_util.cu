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

__device__ void wait_200_us() {
  const uint64_t begin = now();
  while (now() - begin < 200'000) {
  }
}

__global__ void hold() { wait_200_us(); }

__global__ void late(const LateCopies all) {
  cuda::let_next_begin();
  wait_200_us();
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

void hold_multiprocessors_but(int32_t free, cudaStream_t stream) {
  int device = 0, all = 0, shared_bytes = 0;
  FOVEA_CHECK(cudaGetDevice(&device) == cudaSuccess);
  FOVEA_CHECK(cudaDeviceGetAttribute(&all, cudaDevAttrMultiProcessorCount, device) == cudaSuccess);
  FOVEA_CHECK(cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) == cudaSuccess);
  FOVEA_CHECK(cudaFuncSetAttribute(hold, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes) == cudaSuccess);
  hold<<<all - free, 1, shared_bytes, stream>>>();
  cuda::check_launch("held multiprocessors");
}

}  // namespace fovea::testing
