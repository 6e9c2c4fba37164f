// Products of fp8 with fp8: the scalar reference of what --numerics fp8 computes on a GPU.
#pragma once

#include <fovea/kernels/linear.h>

#include <cstdint>

namespace fovea::ref {

// x [rows, k] as e4m3 numbers with float32 scales, one for `group` columns of a row (the last group may have fewer). All in float32,
// each operation rounded to nearest even:
//   scale = max(amax / 448, 2^-126), amax the largest |x| of the group that is no NaN
//   code  = e4m3(x * (1 / scale)), saturating at 448; NaN stays NaN
// A group with an infinity has an infinite scale, whose inverse is 0: the infinity becomes NaN, finite numbers 0, and their products
// with the scale NaN.
// codes: [rows, k]; scales: [groups, rows].
void round_rows_to_e4m3(const float* x, int32_t rows, int32_t k, int32_t group, uint8_t* codes, float* scales);

// linear() for weights of type fp8_e4m3, whose groups x is rounded by: out = sum over groups of x scale * w scale * sum of products of
// codes, + bias. Sums are float64.
void linear_fp8(const LinearParams& p);

}  // namespace fovea::ref
