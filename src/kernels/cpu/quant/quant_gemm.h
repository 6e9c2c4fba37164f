// Products of many rows with quantised weights, both sides in int8: out = x W^T + bias. x as quant_gemv has it, one scale for 32
// elements; panels of 32 rows of W are unpacked and stay in the L2 cache. AVX-512 VNNI or AMX, to the same bits.
#pragma once

#include <fovea/kernels/weight.h>

#include <cstdint>

#include "kernels/cpu/quant/quant_gemv.h"

namespace fovea::cpu {

inline constexpr int64_t kQuantPanelRows = 32;   // of W
inline constexpr int64_t kQuantSliceRows = 128;  // of W at most in a slice: as often x comes from the caches nearby
inline constexpr int64_t kQuantDepth = 8;        // pieces that are unpacked at once
inline constexpr int64_t kQuantScratchPanels = kQuantSliceRows / kQuantPanelRows * kQuantDepth;

// 256 columns of 32 rows: sums of four neighbours come out of one lane.
struct alignas(64) QuantPanel {
  int8_t code[kQuantPiece / 4][kQuantPanelRows][4];
  int32_t less[kQuantPiece / 16][kQuantPanelRows];  // of 16 columns, or the first half: of 32. What x's bias adds; not for AMX
  float value[kQuantPiece / 16][kQuantPanelRows];
  float offset[kQuantPiece / 16][kQuantPanelRows];  // what the sum of x is multiplied by, where the type has offsets
};

struct QuantGemmSlice {
  const QuantisedX* packed = nullptr;  // of quantise_x, all rows, in biased order; for AMX in natural order
  int64_t rows = 0;                    // >= 1
  WeightView w;                        // the rows of the slice, 1 to kQuantSliceRows; of a type that quant_gemv_takes
  const float* bias = nullptr;         // [w.rows], or null
  float* out = nullptr;                // out[r * out_stride + j], j in [0, w.rows)
  int64_t out_stride = 0;
};

// scratch: [kQuantScratchPanels]. A row's result has the same bits for any number of rows.
void quant_gemm(const QuantGemmSlice& slice, QuantPanel* scratch);

// Of kQuantAmxRows rows of x and more, only where cpu_features().amx_int8 holds.
inline constexpr int64_t kQuantAmxRows = 12;
void quant_gemm_amx(const QuantGemmSlice& slice, QuantPanel* scratch);

}  // namespace fovea::cpu
