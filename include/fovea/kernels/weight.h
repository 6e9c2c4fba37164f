// WeightView: a weight matrix where an operation reads it. fovea/kernels.h has the conventions.
#pragma once

#include <fovea/types.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace fovea {

// How the elements of a matrix lie in memory.
enum class WeightType : uint8_t {
  // Elements that stand for themselves.
  f32,
  f16,
  bf16,
  // Blocks of a row with their scales inside, laid out as GGUF files have them.
  q8_0,
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q2_k,
  q3_k,
  q4_k,
  q5_k,
  q6_k,
  iq4_nl,
  iq4_xs,
  mxfp4,
  // Elements with scales apart (WeightView::scales): element times scale.
  fp8_e4m3,
  int8,
  // 4 bits with scales and zeros apart, what AWQ and GPTQ files are made to: blocks of 32 elements in 16 bytes, of which byte i has
  // element i in its low half and element i + 16 in its high half; (bits - zero) times scale. Of each group one uint32: its lower
  // 8 bits are the zero, its upper 24 with 8 zeros below them the scale as a float.
  int4,
};
inline constexpr int kWeightTypes = 19;

struct WeightFormat {
  std::string_view name;
  int32_t block;  // elements of a row that lie together: rows are whole blocks
  int32_t bytes;  // of a block
  bool scaled;    // scales lie apart
};

inline constexpr WeightFormat kWeightFormats[kWeightTypes] = {
    {"f32", 1, 4, false},      {"f16", 1, 2, false},      {"bf16", 1, 2, false},       {"q8_0", 32, 34, false},
    {"q4_0", 32, 18, false},   {"q4_1", 32, 20, false},   {"q5_0", 32, 22, false},     {"q5_1", 32, 24, false},
    {"q2_k", 256, 84, false},  {"q3_k", 256, 110, false}, {"q4_k", 256, 144, false},   {"q5_k", 256, 176, false},
    {"q6_k", 256, 210, false}, {"iq4_nl", 32, 18, false}, {"iq4_xs", 256, 136, false}, {"mxfp4", 32, 17, false},
    {"fp8_e4m3", 1, 1, true},  {"int8", 1, 1, true},      {"int4", 32, 16, true},
};
constexpr const WeightFormat& weight_format(WeightType type) { return kWeightFormats[static_cast<int>(type)]; }
constexpr std::string_view weight_type_name(WeightType type) { return weight_format(type).name; }

// Elements that stand for themselves.
constexpr bool is_plain(WeightType type) { return type <= WeightType::bf16; }

// y[n] = sum over k of weight[n, k] x[k].
struct WeightView {
  const void* data = nullptr;    // [rows, cols] row-major, contiguous, as files store it; plain types aligned to the element size
  const void* scales = nullptr;  // [rows, scales_per_row()] of 4 bytes; null where the type has none apart
  WeightType type = WeightType::bf16;
  int64_t rows = 0;   // outputs (N)
  int64_t cols = 0;   // inputs (K), whole blocks
  int32_t group = 0;  // columns that share a scale, the last group may have fewer; a multiple of 32 or all cols
  // Sixteen rows lie together, block by block and in each four bytes of every row in turn, as kernels of a CPU with VNNI read them:
  // q4_k and q6_k alone, whole sixteens of rows. row() and some_rows() then take multiples of 16.
  bool interleaved = false;

  // Of the elements of a plain type; u8, which no operation takes for weights, of others.
  DType dtype() const {
    switch (type) {
      case WeightType::f32:
        return DType::f32;
      case WeightType::f16:
        return DType::f16;
      case WeightType::bf16:
        return DType::bf16;
      default:
        return DType::u8;
    }
  }
  int64_t row_bytes() const { return cols / weight_format(type).block * weight_format(type).bytes; }
  int64_t scales_per_row() const { return weight_format(type).scaled && group > 0 ? (cols + group - 1) / group : 0; }
  size_t data_bytes() const { return static_cast<size_t>(rows * row_bytes()); }
  size_t bytes() const { return data_bytes() + static_cast<size_t>(4 * rows * scales_per_row()); }  // scales and all
  const uint8_t* row(int64_t first) const { return static_cast<const uint8_t*>(data) + first * row_bytes(); }
  // Rows [first, first + count).
  WeightView some_rows(int64_t first, int64_t count) const {
    WeightView out = *this;
    out.data = row(first);
    if (scales) out.scales = static_cast<const uint32_t*>(scales) + first * scales_per_row();
    out.rows = count;
    return out;
  }
};

// Of elements that stand for themselves: dtype is f32, f16 or bf16.
inline WeightView weight_view(const void* data, DType dtype, int64_t rows, int64_t cols) {
  const WeightType type = dtype == DType::f32 ? WeightType::f32 : dtype == DType::f16 ? WeightType::f16 : WeightType::bf16;
  return {data, nullptr, type, rows, cols};
}

// down(silu(gate x) * up x).
struct FeedForwardWeights {
  WeightView gate, up, down;  // [f, hidden] twice, [hidden, f]
};

}  // namespace fovea
