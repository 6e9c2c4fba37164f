// Products of few rows on AMX: out = x W^T + bias for 1 to 16 rows of x rounded to bf16, W in bf16 read in
// place. W is the A operand as it is stored; only x, the smaller side, is repacked for the tiles.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fovea::cpu {

inline constexpr int kAmxLinearMaxRows = 16;
inline constexpr int64_t kAmxLinearTileK = 32;  // elements of k in one tile

// x as B tiles: packed[k / 32][pair of k][16 columns][2], 1 KiB a tile; rows and k that are missing are zero.
inline constexpr int64_t amx_packed_halves(int64_t k) {
  return (k + kAmxLinearTileK - 1) / kAmxLinearTileK * kAmxLinearTileK * kAmxLinearMaxRows;
}
void amx_linear_pack(const float* x, int64_t x_stride, int32_t rows, int64_t k, uint16_t* packed);

struct AmxLinearSlice {
  const uint16_t* packed = nullptr;  // of amx_linear_pack, 64-byte aligned
  int32_t rows = 0;                  // 1 to kAmxLinearMaxRows
  int64_t k = 0;                     // >= 1
  const uint16_t* w = nullptr;       // bf16 [n, k] contiguous: the first row of the slice
  int64_t n = 0;
  const float* bias = nullptr;  // [n] of the slice, or null
  float* out = nullptr;         // out[r * out_stride + j], j in [0, n)
  int64_t out_stride = 0;
  int64_t ahead_bytes = 512;  // how far each of the 64 rows read at once is prefetched
};

// Only where cpu_features().amx_bf16 holds. A row's result does not depend on the other rows, nor on the
// slice.
void amx_linear(const AmxLinearSlice& slice);

}  // namespace fovea::cpu
