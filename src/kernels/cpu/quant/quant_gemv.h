// Products of few rows with quantised weights read in place: out = x W^T + bias for 1 to 16 rows of x, at the speed at which W comes
// from memory. x is rounded to int8 with one scale for 32 elements; products of integers are summed exactly, 16 or 32 at a time, and
// then in float32. docs/linear.md says what that costs and where it is used.
#pragma once

#include <fovea/kernels/weight.h>

#include <cstdint>

#include "kernels/cpu/cpu_features.h"

namespace fovea::cpu {

inline constexpr int32_t kQuantGemvRows = 16;
inline constexpr int64_t kQuantPiece = 256;  // elements of x in a piece; the last of a row is filled up with zeros

// 256 elements of one row of x: element i is code times scale[i / 16].
struct alignas(64) QuantisedX {
  int8_t code[kQuantPiece];           // in an order that suits the weights
  float scale[kQuantPiece / 16];      // in the order of x, equal in pairs
  float sum[kQuantPiece / 16];        // of 16 elements, as floats
  float sum_of_32[kQuantPiece / 32];  // of 32; with the scales behind it one vector of 64 bytes
  // Order pairs: of odd parts a sixteenth, since codes of weights stay in the upper half of bytes.
  float scale_of_32[kQuantPiece / 32];
};

// How codes of weights come out of a block without shuffles, which x then follows. A part is 32 elements.
enum class XOrder : uint8_t {
  natural,  // q2_k, q3_k, q6_k, and interleaved weights; all types without AVX2
  halves,   // the first halves of four parts, then their second halves: one byte holds elements i and i + 16
  pairs,    // likewise of parts 0 2 4 6, then of 1 3 5 7: one byte holds elements i and i + 32 (q4_k, q5_k)
  across,  // the first halves of parts 0 and 4, their second halves, then of 1 and 5, and so on: quant_gemv_avx2's and quant_gemv_avx_vnni's
  biased,  // natural, each code plus kXBias, as unsigned: quant_gemm's
};
inline constexpr int kXOrders = 4;  // of quant_gemv
inline constexpr int kXBias = 128;

// Whether quant_gemv takes weights of this type: all that are not plain.
constexpr bool quant_gemv_takes(WeightType type) { return !is_plain(type) && type != WeightType::fp8_e4m3; }
// Whether their scales belong to 16 elements; else to 32 or more.
constexpr bool by_sixteen(WeightType type) {
  return type == WeightType::q2_k || type == WeightType::q3_k || type == WeightType::q6_k;
}
XOrder x_order(const WeightView& w, const CpuFeatures& features);

// What is added to the codes of a type without offsets to make them unsigned, as VNNI wants them: the least that does. 0: they are.
constexpr int code_bias(WeightType type) {
  switch (type) {
    case WeightType::q4_0:
      return 8;
    case WeightType::q5_0:
      return 16;
    case WeightType::mxfp4:
      return 12;
    case WeightType::q3_k:
      return 4;
    case WeightType::q6_k:
      return 32;
    case WeightType::q8_0:
    case WeightType::iq4_nl:
    case WeightType::iq4_xs:
    case WeightType::int8:
    case WeightType::int4:  // bits less zeros
      return 128;
    default:
      return 0;
  }
}

inline constexpr int64_t quant_pieces(int64_t k) { return (k + kQuantPiece - 1) / kQuantPiece; }
// Rows [begin, end) of x [rows, k]. packed: [quant_pieces(k), rows].
void quantise_x(const float* x, int64_t rows, int64_t k, int64_t begin, int64_t end, XOrder order, QuantisedX* packed);

struct QuantGemvSlice {
  const QuantisedX* packed = nullptr;  // of quantise_x in the order of the weights' type
  int32_t rows = 0;                    // 1 to kQuantGemvRows
  WeightView w;                        // rows of the slice
  const float* bias = nullptr;         // [w.rows], or null
  float* out = nullptr;                // out[r * out_stride + j], j in [0, w.rows)
  int64_t out_stride = 0;
};

// Every out[r][j] is one fixed sum, whatever `rows` and the slice are.
void quant_gemv(const QuantGemvSlice& slice, const CpuFeatures& features);

// With AVX-512 VNNI, AVX-VNNI, or AVX2, the last two to the same bits; quant_gemv calls them where the CPU has that.
void quant_gemv_vnni(const QuantGemvSlice& slice);
void quant_gemv_avx_vnni(const QuantGemvSlice& slice);
void quant_gemv_avx2(const QuantGemvSlice& slice);
// The first over interleaved weights.
void quant_gemv_rows(const QuantGemvSlice& slice);

}  // namespace fovea::cpu
