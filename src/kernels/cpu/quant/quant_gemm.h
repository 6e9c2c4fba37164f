// Products of many rows with quantised weights, both sides in int8: out = x W^T + bias. x as quant_gemv has it, one scale for 32
// elements; 32 rows of W at a time are unpacked into panels that stay in the L2 cache. AVX-512 VNNI.
#pragma once

#include <fovea/kernels/weight.h>

#include <cstdint>

#include "kernels/cpu/quant/quant_gemv.h"

namespace fovea::cpu {

inline constexpr int64_t kQuantPanelRows = 32;  // of W in a slice

// 256 columns of a slice: sums of four neighbours come out of one lane.
struct alignas(64) QuantPanel {
  uint8_t code[kQuantPiece / 4][kQuantPanelRows][4];
  float value[kQuantPiece / 16][kQuantPanelRows];   // of 16 columns, or the first half: of 32
  float second[kQuantPiece / 16][kQuantPanelRows];  // what the sum of x is multiplied by: offsets, less what codes are too large by
};

struct QuantGemmSlice {
  const QuantisedX* packed = nullptr;  // of quantise_x in natural order, all rows
  int64_t rows = 0;                    // >= 1
  WeightView w;                        // the rows of the slice, 1 to kQuantPanelRows; of a type that quant_gemv_takes
  const float* bias = nullptr;         // [w.rows], or null
  float* out = nullptr;                // out[r * out_stride + j], j in [0, w.rows)
  int64_t out_stride = 0;
};

// scratch: [quant_pieces(w.cols)]. A row's result has the same bits for any number of rows.
void quant_gemm(const QuantGemmSlice& slice, QuantPanel* scratch);

}  // namespace fovea::cpu
