// Rows of activations rounded to e4m3, for products of fp8 with fp8: as they lie, or as they come out of an activation or a norm,
// which then needs no pass of its own over memory. ref::round_rows_to_e4m3() says what is computed.
#pragma once

#include <fovea/kernels/elementwise.h>

#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/linear/config.h"

namespace fovea::cuda {

struct Fp8Rows {
  uint8_t* codes = nullptr;      // [rows, k]
  float* scales = nullptr;       // [k / group rounded up, scaled_rows]
  int32_t group = 0;             // numbers of a row that share a scale: k, or kFp8Group
  int32_t scaled_rows = 0;       // the first of them
  float* last_scales = nullptr;  // of the last kFp8RowsStep rows (again), [k / group rounded up, kFp8RowsStep]; null: not wanted
};

// All: k a multiple of 4, at most kFp8DepthMax; inputs on multiples of 16.

// x [rows, k].
void fp8_rows(const float* x, int32_t rows, int32_t k, const Fp8Rows& out, const Queue& queue);

// Of silu(gate) * up; p.out is not written.
void fp8_rows_of(const SiluMulParams& p, const Fp8Rows& out, const Queue& queue);

// Of the norm; p.out is not written, p.x is where p.add is given. Without p.row_index.
void fp8_rows_of(const RmsNormParams& p, const Fp8Rows& out, const Queue& queue);

// Scales [n, groups] of which kFp8Group rows are alike, as the library takes them: [n / kFp8Group, groups], both rounded up, groups
// to a multiple of 4.
void block_scales(const float* from, int64_t n, int64_t groups, float* to, const Queue& queue);

// Whether they are alike. Waits for the stream. flag: 4 bytes of device memory.
bool are_of_blocks(const float* scales, int64_t n, int64_t groups, int32_t* flag, const Queue& queue);

// out [rows, n] += bias [n], where the library's products of fp8 take none.
void add_bias(const float* bias, float* out, int32_t rows, int32_t n, const Queue& queue);

}  // namespace fovea::cuda
