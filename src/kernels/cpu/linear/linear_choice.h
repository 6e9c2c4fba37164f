// Which kernel multiplies how many rows of a linear layer: a pure choice from plain numbers.
//
//   rows     f32 numerics, or no bf16 hardware   bf16 numerics, AMX            bf16 numerics, AVX-512 bf16 without AMX
//   1..4     gemv                                gemv                          gemv
//   5..16    gemv                                amx (bf16 weights), gemv      gemv
//   17..     f32                                 library, tail as above        library, tail gemv
//
// 1 to 16 rows and quantised weights (not fp8): quant, where the host may round x to int8 and the call does not ask for the bits of
// many rows. fp8 weights: fp8 with AVX-512.
// Where all rows may be rounded to int8: 17 rows and more by int8_amx (where a type's scales are for 32 columns) or int8, with AVX-512
// VNNI and no other weights in the call; else cut into 16 rows at a time. docs/linear.md counts why AMX takes no fewer.
// full_precision: gemv, 16 rows at a time, whatever the numerics. Weights that are quantised are made into floats in cache for
// gemv and f32, and into bf16 for the library.
#pragma once

#include <fovea/kernels/linear.h>

#include <cstdint>
#include <string>

#include "kernels/cpu/cpu_features.h"

namespace fovea::cpu {

enum class LinearKernel : uint8_t {
  gemv,      // gemv.h: rounds nothing
  amx,       // amx_linear.h: rounds x to bf16
  f32,       // linear_f32.h: rounds nothing
  library,   // oneDNN in bf16: rounds x and weights
  quant,     // quant/quant_gemv.h: rounds x to int8
  fp8,       // quant/fp8_gemv.h: rounds nothing
  int8,      // quant/quant_gemm.h: rounds x to int8
  int8_amx,  // likewise, to the same bits
};

inline constexpr int32_t kFewRows = 16;  // most that gemv and amx take at once

// Which rows of x are rounded to int8 where weights are quantised (fp8 apart).
enum class Int8Rows : uint8_t {
  none,
  few,  // of calls with 1 to 16 rows that do not ask for the bits of many
  all,
};

// What does not change from call to call.
struct LinearHost {
  Numerics numerics = Numerics::f32;
  CpuFeatures features;
  Int8Rows int8 = Int8Rows::none;
  bool uses_library() const { return numerics == Numerics::bf16 && (features.amx_bf16 || features.avx512_bf16); }
  bool multiplies_int8() const { return int8 == Int8Rows::all && features.avx512_vnni; }
  // The library is asked for multiples of it: our tiles are faster below, and for 16 rows it chose a kernel without AMX at times.
  int32_t library_rows() const { return features.amx_bf16 ? 32 : 16; }
};

// Rows [0, many_rows) go to `many`; the rest, at most kFewRows at a time, to few_kernel().
struct LinearPlan {
  LinearKernel many = LinearKernel::gemv;
  int32_t many_rows = 0;
};
// What the weights of a call have in common.
enum class CallWeights : uint8_t {
  other,      // some are not such that quant_gemv_takes them
  sixteens,   // it takes them, and they are all by_sixteen
  quantised,  // it takes them
};
LinearPlan choose(const LinearHost& host, int32_t rows, bool full_precision, CallWeights weights);
// as_many: the rows are the tail of many, or must have their bits.
LinearKernel few_kernel(const LinearHost& host, int32_t rows, WeightType weight, bool as_many);

// All of a call for weights of one type: "library 32, amx 16, gemv 3".
std::string describe(const LinearHost& host, int32_t rows, WeightType weight, bool full_precision);

}  // namespace fovea::cpu
