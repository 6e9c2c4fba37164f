#include "kernels/cuda/ceilings/ceilings.h"

#include "device/cuda/cuda_stream.h"

#include <cstdint>

namespace fovea::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kLoads = 8;  // of 16 bytes a thread, in flight at once

__global__ void __launch_bounds__(kThreads) sweep(const uint4* __restrict__ data, int64_t count, float* sink) {
  uint32_t sum = 0;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x; at < count; at += kLoads * stride) {
    uint4 v[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) v[i] = at + i * stride < count ? __ldcs(data + at + i * stride) : uint4{};
#pragma unroll
    for (int i = 0; i < kLoads; ++i) sum += v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
  }
  if (sum == 0x12345678u) *sink = 1;  // the compiler cannot know that it hardly ever is
}

}  // namespace

void read_sweep(const void* data, size_t bytes, float* sink, Stream& stream) {
  int device = 0, multiprocessors = 0;
  (void)cudaGetDevice(&device);
  (void)cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  sweep<<<4 * multiprocessors, kThreads, 0, cuda_stream(stream)>>>(static_cast<const uint4*>(data),
                                                                   static_cast<int64_t>(bytes / 16), sink);
}

}  // namespace fovea::cuda
