// Elements and keys as the cache holds them.
#pragma once

#include <fovea/kernels/attention.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace fovea::cuda::kv_writing {

__device__ inline float widen_fp8(__nv_fp8_storage_t x, DType dtype) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(x, dtype == DType::fp8_e5m2 ? __NV_E5M2 : __NV_E4M3)));
}

__device__ inline __nv_fp8_storage_t narrow_fp8(float x, DType dtype) {
  return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, dtype == DType::fp8_e5m2 ? __NV_E5M2 : __NV_E4M3);
}

__device__ inline float read(const void* cache, DType dtype, int64_t at) {
  switch (dtype) {
    case DType::f32:
      return static_cast<const float*>(cache)[at];
    case DType::f16:
      return __half2float(static_cast<const __half*>(cache)[at]);
    case DType::bf16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(cache)[at]);
    default:
      return widen_fp8(static_cast<const __nv_fp8_storage_t*>(cache)[at], dtype);
  }
}

// Rounds x to the cache's element, stores it there, and returns what was stored.
__device__ inline float store(void* cache, DType dtype, int64_t at, float x) {
  switch (dtype) {
    case DType::f32:
      return static_cast<float*>(cache)[at] = x;
    case DType::f16:
      return __half2float(static_cast<__half*>(cache)[at] = __float2half_rn(x));
    case DType::bf16:
      return __bfloat162float(static_cast<__nv_bfloat16*>(cache)[at] = __float2bfloat16_rn(x));
    default: {
      const __nv_fp8_storage_t y = narrow_fp8(x, dtype);
      static_cast<__nv_fp8_storage_t*>(cache)[at] = y;
      return widen_fp8(y, dtype);
    }
  }
}

// Of a slot_mapping's entry; block sizes are powers of two.
__device__ inline int64_t block_of(int64_t slot, int block_size) { return slot >> (__ffs(block_size) - 1); }
__device__ inline int offset_in_block(int64_t slot, int block_size) { return static_cast<int>(slot) & (block_size - 1); }

// Where element i of a token lies, from the start of its block and head.
__device__ inline int key_offset(const KvView& kv, int token, int i) {
  if (kv.layout == KvLayout::hnd) return token * static_cast<int>(kv.tokens_apart()) + i;
  const int x = 16 / (kv.dtype == DType::f32 ? 4 : is_fp8(kv.dtype) ? 1 : 2);
  return (i / x * kv.block_size + token) * x + i % x;
}

// What the elements of a head's keys are to be multiplied by.
__device__ inline float key_scale(const KvView& kv, int head) { return kv.k_scale == nullptr ? 1.0f : kv.k_scale[head]; }

}  // namespace fovea::cuda::kv_writing
