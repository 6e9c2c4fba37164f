// Which of the ways to multiply a linear call takes: a pure choice from the plain numbers of its Params.
#pragma once

#include <fovea/kernels/linear.h>

#include <cstdint>
#include <string>

namespace fovea::cuda {

enum class LinearPath : uint8_t {
  skinny,    // tensor cores, one pass over bf16 weights, a group in one launch
  gemv,      // float32, one pass over weights of any dtype, a group in one launch
  library,   // cuBLASLt, weight by weight: bf16, or TF32 for f32 and f16 weights
  tiled,     // float32, any shape and address, weight by weight: a row's bits depend on the row alone
  few,       // quantised weights read as they lie, a group of one type in one launch
  unpacked,  // quantised weights made into bf16 or float32, some outputs at a time, for library or tiled
  fp8        // cuBLASLt, fp8 weights as they lie and x rounded to e4m3; what the library declines is unpacked
};

inline constexpr int kGemvRowsMax = 8;
inline constexpr int kSkinnyRowsMax = 16;
inline constexpr int32_t kFp8DepthMax = 32768;  // numbers of a row of x, which a thread block holds in registers
inline constexpr int32_t kFp8Group = 128;   // columns that share a scale, where not all of a row do; of weights as many rows too
inline constexpr int32_t kFp8RowsStep = 4;  // rows of x with scales of groups that the library takes: a multiple

struct LinearShape {
  Numerics numerics = Numerics::bf16;
  bool full_precision = false;
  bool on_vectors = true;  // every weight row begins and ends on 16 bytes, and so does x
  bool all_bf16 = true;    // weights
  int32_t rows = 0;
  int32_t k = 0;
  int64_t elements = 0;    // of all weights
  bool quantised = false;  // weights: all of a call are, or none
  bool fp8 = false;        // weights: all are e4m3 with scales that products of fp8 take, and those were asked for
};

// fp8: whether x may be rounded to e4m3 for fp8 weights.
LinearShape describe(const LinearParams& p, Numerics numerics, bool fp8 = false);
LinearPath choose(const LinearShape& shape);
std::string to_string(LinearPath path);

}  // namespace fovea::cuda
