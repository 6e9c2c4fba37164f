// Keys as the cache holds them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "kernels/ops/attention.h"

namespace fovea::cuda::kv_writing {

__device__ inline float read(const void* cache, DType dtype, int64_t at) {
  switch (dtype) {
    case DType::f32:
      return static_cast<const float*>(cache)[at];
    case DType::f16:
      return __half2float(static_cast<const __half*>(cache)[at]);
    case DType::bf16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(cache)[at]);
    default:
      return __half2float(__half(__nv_cvt_fp8_to_halfraw(static_cast<const __nv_fp8_storage_t*>(cache)[at], __NV_E4M3)));
  }
}

// Of a slot_mapping's entry; block sizes are powers of two.
__device__ inline int64_t block_of(int64_t slot, int block_size) { return slot >> (__ffs(block_size) - 1); }
__device__ inline int offset_in_block(int64_t slot, int block_size) { return static_cast<int>(slot) & (block_size - 1); }

// Where element i of a token lies, from the start of its block and head.
__device__ inline int key_offset(const KvView& kv, int token, int i) {
  if (kv.layout == KvLayout::hnd) return token * kv.head_dim + i;
  const int x = 16 / (kv.dtype == DType::f32 ? 4 : kv.dtype == DType::fp8_e4m3 ? 1 : 2);
  return (i / x * kv.block_size + token) * x + i % x;
}

}  // namespace fovea::cuda::kv_writing
