// Which kernel multiplies how many rows of a linear layer: a pure choice from plain numbers.
//
//   rows     f32 numerics, or no bf16 hardware   bf16 numerics, AMX            bf16 numerics, AVX-512 bf16 without AMX
//   1..4     gemv                                gemv                          gemv
//   5..16    gemv                                amx (bf16 weights), gemv      gemv
//   17..     f32                                 library, tail as above        library, tail gemv
//
// full_precision: gemv, 16 rows at a time, whatever the numerics.
#pragma once

#include <fovea/kernels/linear.h>

#include <cstdint>
#include <string>

#include "kernels/cpu/cpu_features.h"

namespace fovea::cpu {

enum class LinearKernel : uint8_t {
  gemv,     // gemv.h: rounds nothing
  amx,      // amx_linear.h: rounds x to bf16
  f32,      // linear_f32.h: rounds nothing
  library,  // oneDNN in bf16: rounds x and weights
};

inline constexpr int32_t kFewRows = 16;  // most that gemv and amx take at once

// What does not change from call to call.
struct LinearHost {
  Numerics numerics = Numerics::f32;
  CpuFeatures features;
  bool uses_library() const { return numerics == Numerics::bf16 && (features.amx_bf16 || features.avx512_bf16); }
  // The library is asked for multiples of it: our tiles are faster below, and for 16 rows it chose a kernel without AMX at times.
  int32_t library_rows() const { return features.amx_bf16 ? 32 : 16; }
};

// Rows [0, many_rows) go to `many`; the rest, at most kFewRows at a time, to few_kernel().
struct LinearPlan {
  LinearKernel many = LinearKernel::gemv;
  int32_t many_rows = 0;
};
LinearPlan choose(const LinearHost& host, int32_t rows, bool full_precision);
LinearKernel few_kernel(const LinearHost& host, int32_t rows, DType weight);

// All of a call for weights of one dtype: "library 32, amx 16, gemv 3".
std::string describe(const LinearHost& host, int32_t rows, DType weight, bool full_precision);

}  // namespace fovea::cpu
