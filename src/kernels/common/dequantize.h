// Weights of every type as floats: what a quantised matrix means. Blocks of GGUF files are read as the `gguf` Python package reads
// them, to the bit (tools/make_dequant_goldens.py).
#pragma once

#include <fovea/kernels/weight.h>
#include <fovea/status.h>

#include <cstdint>

namespace fovea {

// Elements [begin, begin + count) of row `row`; both are multiples of the type's block; not of interleaved weights. out: [count].
void dequantize(const WeightView& w, int64_t row, int64_t begin, int64_t count, float* out);

// All of a row. out: [w.cols].
inline void dequantize_row(const WeightView& w, int64_t row, float* out) { dequantize(w, row, 0, w.cols, out); }

// Refuses columns that are not whole blocks, and scales that are missing or whose group does not fit: invalid_argument.
Status check_weight(const WeightView& w);

// The sixteen values that codes of iq4_nl and iq4_xs stand for, and twice those of mxfp4.
inline constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
inline constexpr int8_t kMxfp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Half of the power of two that an e8m0 byte stands for.
float e8m0_half(uint8_t e);

// q4_k and q5_k: scale and minimum of each of the eight parts of a block, 6 bits each, from its 12 bytes.
void unpack_k_scales(const uint8_t* packed, uint8_t* scales, uint8_t* mins);
// q3_k: sixteen scales of 6 bits, less 32, from its 12 bytes.
void unpack_q3_scales(const uint8_t* packed, int8_t* scales);

}  // namespace fovea
