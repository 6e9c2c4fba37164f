#include "kernels/cuda/ceilings/ceilings.h"

#include "device/cuda/cuda_stream.h"

#include <cstdint>

#include "kernels/cuda/dsa/products.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/prefill/hopper.cuh"

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

constexpr int kGroups = 3;  // of 128 threads

// Values of both signs around 1: what is multiplied decides how much power that takes.
template <typename T>
__global__ void __launch_bounds__(128 * kGroups, 1) products(int rounds, float* sink) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kPanel = 256 * 128;  // bytes: the rows of b, 128 bytes of each; a is the first 64 of them
  __shared__ __align__(1024) uint8_t panel[kPanel];
  for (int i = threadIdx.x; i < kPanel / static_cast<int>(sizeof(T)); i += blockDim.x) {
    const uint32_t noise = static_cast<uint32_t>(i) * 2654435761u >> 8;
    reinterpret_cast<T*>(panel)[i] = T((static_cast<float>(noise % 1024) - 511.5f) / 256.0f);
  }
  prefill::async_proxy_fence();
  __syncthreads();
  float d[32][4] = {};
  const uint32_t address = prefill::shared_address(panel);
  for (int round = 0; round < rounds; ++round) {
    prefill::pin(d);
    prefill::wgmma_begin();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const uint64_t of_step = prefill::matrix_descriptor(address + step * 32);
      dsa::multiply<T>(d, of_step, of_step, true);  // or ptxas would leave out what is overwritten
    }
    prefill::wgmma_commit();
    prefill::wgmma_wait<0>();
    prefill::pin(d);
  }
  if (d[0][0] == 12345.0f) *sink = d[31][3];
#endif
}

}  // namespace

double product_sweep(DType dtype, int rounds, float* sink, Stream& stream) {
  if (!runs_code_for_hopper()) return 0;
  int device = 0, multiprocessors = 0;
  (void)cudaGetDevice(&device);
  (void)cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  const bool bf16 = dtype == DType::bf16;
  auto* kernel = bf16 ? &products<__nv_bfloat16> : &products<__nv_fp8_e4m3>;
  kernel<<<multiprocessors, 128 * kGroups, 0, cuda_stream(stream)>>>(rounds, sink);
  return 2.0 * 64 * 256 * (bf16 ? 64 : 128) * rounds * kGroups * multiprocessors;
}

void read_sweep(const void* data, size_t bytes, float* sink, Stream& stream) {
  int device = 0, multiprocessors = 0;
  (void)cudaGetDevice(&device);
  (void)cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  sweep<<<4 * multiprocessors, kThreads, 0, cuda_stream(stream)>>>(static_cast<const uint4*>(data),
                                                                   static_cast<int64_t>(bytes / 16), sink);
}

}  // namespace fovea::cuda
