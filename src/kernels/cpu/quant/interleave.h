// Sixteen rows of blocks interleaved (WeightView::interleaved): 4 bytes of each row's first block in turn, then the next 4, and so on
// (of q6_k in an order of their own), the last 2 of q6_k's 210 likewise; then the second blocks. A vector register then holds four bytes of each of 16 rows, and scales,
// minimums and sums one lane of each row: nothing is spread, and nothing summed across lanes.
#pragma once

#include <fovea/kernels/weight.h>

#include <cstdint>

#include "kernels/cpu/cpu_features.h"

namespace fovea::cpu {

inline constexpr int kInterleavedRows = 16;

// Whether quant_gemv is faster over these weights if they are interleaved.
bool gains_interleaved(const WeightView& w, const CpuFeatures& features);
// All rows of w, which is as files have it. to: [w.data_bytes()], not what w points to.
void interleave(const WeightView& w, uint8_t* to);
// A block of a row of interleaved weights, as files have it. to: [weight_format(w.type).bytes]
void copy_block(const WeightView& w, int64_t row, int64_t block, uint8_t* to);

}  // namespace fovea::cpu
