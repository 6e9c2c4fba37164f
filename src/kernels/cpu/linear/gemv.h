// Products of few rows with weights read in place: out = x W^T + bias for 1 to 16 rows of x, at the speed at
// which W comes from memory.
#pragma once

#include <fovea/types.h>

#include <cstdint>

namespace fovea::cpu {

inline constexpr int kGemvMaxRows = 16;

// The rows of x, interleaved vector by vector: one stream for the kernel where separate rows, a power of two
// apart, would fight for the same few sets of the L1 cache (8 rows of 2048 floats: half the speed). Made for
// one dtype of W.
inline constexpr int64_t gemv_packed_floats(int32_t rows, int64_t k) { return rows * ((k + 31) / 32 * 32); }
void gemv_pack(const float* x, int64_t x_stride, int32_t rows, int64_t k, DType weights, float* packed);

// One slice of the rows of W. Every out[r][j] is one fixed sum over k (lane by lane, then over the lanes),
// whatever `rows` and the slice are: batch composition and thread count never change a bit of it.
struct GemvSlice {
  const float* packed = nullptr;  // of gemv_pack for the same rows, k and dtype
  int32_t rows = 0;               // 1 to kGemvMaxRows
  int64_t k = 0;                  // >= 1
  const void* w = nullptr;        // [n, k] contiguous: the first row of the slice
  DType dtype = DType::bf16;      // bf16, f16, f32
  int64_t n = 0;                  // rows of W in the slice
  const float* bias = nullptr;    // [n] of the slice, or null
  float* out = nullptr;           // out[r * out_stride + j], j in [0, n)
  int64_t out_stride = 0;
  bool in_cache = false;  // w is: a hint, for speed alone
};

void gemv(const GemvSlice& slice);

}  // namespace fovea::cpu
