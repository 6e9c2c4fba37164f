// Products of few rows with fp8 weights (e4m3) read in place: out = x W^T + bias, x in float32, nothing rounded. AVX-512.
#pragma once

#include <fovea/kernels/weight.h>

#include <cstdint>

namespace fovea::cpu {

struct Fp8GemvSlice {
  const float* x = nullptr;  // [rows, w.cols], x_stride floats apart
  int64_t x_stride = 0;
  int32_t rows = 0;             // 1 to 16
  WeightView w;                 // rows of the slice
  const float* bias = nullptr;  // [w.rows], or null
  float* out = nullptr;         // out[r * out_stride + j], j in [0, w.rows)
  int64_t out_stride = 0;
};

// Every out[r][j] is one fixed sum, whatever `rows` and the slice are.
void fp8_gemv(const Fp8GemvSlice& slice);

}  // namespace fovea::cpu
