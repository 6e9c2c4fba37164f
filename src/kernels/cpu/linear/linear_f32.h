// Products of many rows in float32: out = x W^T + bias, a slice of W at a time, widened and transposed into
// panels that stay in the L2 cache. Our own kernel, because oneDNN's float32 GEMM allocates inside every call
// (eleven times) and splits by the number of rows; this one gives a row the same bits whatever rows stand
// beside it.
#pragma once

#include <fovea/kernels/weight.h>

#include <cstddef>
#include <cstdint>

namespace fovea::cpu {

inline constexpr int64_t kF32BlockK = 1024;              // elements of k that a panel holds: 32 columns of it are 128 KiB
inline constexpr int64_t kF32SliceRows = 96;             // most rows of W in a slice: 384 KiB of panels
inline constexpr int64_t kF32PanelRows = 32;             // slices are cut at multiples of it
inline constexpr int64_t kF32PaddedK = kF32BlockK + 16;  // rows a power of two apart would share a few cache sets

// x [rows, k] cut in blocks of k: packed[block][row][kF32PaddedK].
inline constexpr int64_t f32_packed_floats(int64_t rows, int64_t k) {
  return (k + kF32BlockK - 1) / kF32BlockK * rows * kF32PaddedK;
}
// Packs rows [begin, end) of x.
void f32_pack(const float* x, int64_t rows, int64_t k, int64_t begin, int64_t end, float* packed);

// Of one worker, 64-byte aligned: the panels of a slice, and as many rows of a block of quantised weights as are made into floats
// at once.
inline constexpr int64_t kF32ScratchFloats = (kF32SliceRows + kF32PanelRows) * kF32BlockK;

struct F32Slice {
  const float* packed = nullptr;  // of f32_pack, all rows
  int64_t rows = 0;               // >= 1
  int64_t k = 0;                  // >= 1
  WeightView w;                   // the rows of the slice, 1 to kF32SliceRows, any type
  const float* bias = nullptr;    // [w.rows], or null
  float* out = nullptr;           // out[r * out_stride + j], j in [0, w.rows)
  int64_t out_stride = 0;
};

void linear_f32(const F32Slice& slice, float* scratch);

}  // namespace fovea::cpu
