// Rows of weights of any type to floats, at the speed of vector code: what prefill multiplies, and embeddings. The same floats as
// kernels/common/dequantize.h gives, to the bit.
#pragma once

#include <fovea/kernels/weight.h>

#include <cstdint>

namespace fovea::cpu {

// Elements [begin, begin + count) of row `row`; both are multiples of the type's block, and begin one of 32 unless the type is plain.
void unpack_f32(const WeightView& w, int64_t row, int64_t begin, int64_t count, float* out);

// All of rows [first, first + rows), rounded to nearest even. out: [rows, w.cols].
void unpack_bf16(const WeightView& w, int64_t first, int64_t rows, uint16_t* out);

// A piece of a row of a type that keeps integers: element i is value[i / 16] * code[i], and plus offset[i / 16] where the type has
// offsets, each operation rounded to float32.
inline constexpr int kUnpackedPiece = 256;
struct UnpackedPiece {
  int8_t code[kUnpackedPiece];
  float value[kUnpackedPiece / 16];
  float offset[kUnpackedPiece / 16];
};
// Types with offsets: q4_1, q5_1, q2_k, q4_k, q5_k.
constexpr bool has_offsets(WeightType type) {
  return type == WeightType::q4_1 || type == WeightType::q5_1 || type == WeightType::q2_k || type == WeightType::q4_k ||
         type == WeightType::q5_k;
}
// `count` elements, at most a piece, from element `begin` of row `row`: both multiples of 32 and of the type's block, except int8's
// last piece. Not for plain types and fp8.
void unpack_codes(const WeightView& w, int64_t row, int64_t begin, int64_t count, UnpackedPiece* out);

}  // namespace fovea::cpu
