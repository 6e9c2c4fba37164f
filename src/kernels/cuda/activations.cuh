// Queries and results of attention in any of their types: float32, or 16-bit floats that are widened when they are read and rounded
// when they are written.
#pragma once

#include <fovea/types.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace fovea::cuda {

__device__ __forceinline__ float4 widen_4(float4 x, DType) { return x; }
__device__ __forceinline__ float4 widen_4(uint2 bits, DType dtype) {
  if (dtype == DType::bf16) {
    return make_float4(__uint_as_float(bits.x << 16), __uint_as_float(bits.x & 0xffff0000u), __uint_as_float(bits.y << 16),
                       __uint_as_float(bits.y & 0xffff0000u));
  }
  const float2 low = __half22float2(*reinterpret_cast<const __half2*>(&bits.x));
  const float2 high = __half22float2(*reinterpret_cast<const __half2*>(&bits.y));
  return make_float4(low.x, low.y, high.x, high.y);
}

// Elements [at, at + 4), which lie at a multiple of 4.
__device__ __forceinline__ float4 read_activations(const void* from, DType dtype, int64_t at) {
  if (dtype == DType::f32) return __ldg(reinterpret_cast<const float4*>(static_cast<const float*>(from) + at));
  return widen_4(__ldg(reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(from) + at)), dtype);
}

__device__ __forceinline__ uint32_t narrow_2(float x, float y, DType dtype) {
  if (dtype == DType::bf16) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
  const __half2 pair = __floats2half2_rn(x, y);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Elements [at, at + 2), which lie at a multiple of 2.
__device__ __forceinline__ void write_activations(void* to, DType dtype, int64_t at, float2 x) {
  if (dtype == DType::f32) {
    *reinterpret_cast<float2*>(static_cast<float*>(to) + at) = x;
  } else {
    *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(to) + at) = narrow_2(x.x, x.y, dtype);
  }
}

// Elements [at, at + 4), which lie at a multiple of 4.
__device__ __forceinline__ void write_activations(void* to, DType dtype, int64_t at, float4 x) {
  if (dtype == DType::f32) {
    *reinterpret_cast<float4*>(static_cast<float*>(to) + at) = x;
  } else {
    *reinterpret_cast<uint2*>(static_cast<uint16_t*>(to) + at) = make_uint2(narrow_2(x.x, x.y, dtype), narrow_2(x.z, x.w, dtype));
  }
}

}  // namespace fovea::cuda
