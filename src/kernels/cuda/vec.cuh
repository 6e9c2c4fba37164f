// Element types on the device: 16-byte reads widened to float32; sums, in a fixed order, and maxima
// over a warp or a block.
#pragma once

#include <fovea/types.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "base/check.h"

namespace fovea::cuda {

__device__ inline float to_f32(float x) { return x; }
__device__ inline float to_f32(__half x) { return __half2float(x); }
__device__ inline float to_f32(__nv_bfloat16 x) { return __bfloat162float(x); }

// How many T a 16-byte access holds.
template <typename T>
inline constexpr int kVec = 16 / sizeof(T);

// The float32 values of 16 bytes of T.
__device__ inline void widen(uint4 v, float (&out)[4], float) {
  out[0] = __uint_as_float(v.x), out[1] = __uint_as_float(v.y);
  out[2] = __uint_as_float(v.z), out[3] = __uint_as_float(v.w);
}
__device__ inline void widen(uint4 v, float (&out)[8], __nv_bfloat16) {
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {  // bf16 is the upper half of a float32
    out[2 * i] = __uint_as_float(words[i] << 16);
    out[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
}
__device__ inline void widen(uint4 v, float (&out)[8], __half) {
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&words[i]));
    out[2 * i] = pair.x, out[2 * i + 1] = pair.y;
  }
}

// Read once and not again: leaves the L1 cache to what is shared. Not an `nc` load, which the compiler takes
// the liberty to sink below a barrier and down to its first use, where nothing else is in flight.
__device__ inline uint4 load_streaming(const void* p) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}

// Stays where it is written: the compiler would let a plain load sink to its first use.
__device__ inline float4 load_now(const float* p) {
  float4 v;
  asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p));
  return v;
}

__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

__device__ inline float warp_max(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}

// The sum, or the largest of what is not negative, over a block of up to 32 whole warps, in every thread. May be called again after
// a barrier only.
__device__ inline float block_sum(float x) {
  __shared__ float partial[32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  x = warp_sum(x);
  if (lane == 0) partial[warp] = x;
  __syncthreads();
  return warp_sum(lane < warps ? partial[lane] : 0.0f);
}
__device__ inline float block_max(float x) {
  __shared__ float partial[32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  x = warp_max(x);
  if (lane == 0) partial[warp] = x;
  __syncthreads();
  return warp_max(lane < warps ? partial[lane] : 0.0f);
}

// Calls f with a value of the dtype's type: f(float{}), f(__half{}) or f(__nv_bfloat16{}).
template <typename F>
void with_float_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32:
      return f(float{});
    case DType::f16:
      return f(__half{});
    case DType::bf16:
      return f(__nv_bfloat16{});
    default:
      FOVEA_CHECK(false && "a dtype of weights: f32, f16 or bf16");
  }
}

inline bool aligned16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

}  // namespace fovea::cuda
