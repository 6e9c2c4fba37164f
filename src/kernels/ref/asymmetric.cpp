#include "kernels/ref/asymmetric.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/common/convert.h"

namespace fovea::ref {
namespace {

constexpr int kPartials = 32;

// Of x[0..count), each as `term` makes it, in the order that is part of the definition (HashCodec::length_factor).
template <typename Sum, typename Term>
Sum ordered_sum(const float* x, int count, const Term& term) {
  std::array<Sum, kPartials> partial{};
  for (int i = 0; i < count; ++i) partial[i % kPartials] += term(x[i]);
  for (int half = kPartials / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) partial[i] += partial[i + half];
  }
  return partial[0];
}

}  // namespace

float length_factor(const HashCodec& codec, const float* key) {
  std::array<float, kMaxHashBits> y;
  rotate(codec, key, y.data());
  // The product is exact in float64, so it is rounded to float32 once, and nothing can fuse it with the sum.
  const auto squares = ordered_sum<float>(y.data(), codec.bits, [](float v) { return static_cast<float>(double{v} * v); });
  const auto sum = ordered_sum<float>(y.data(), codec.bits, [](float v) { return std::abs(v); });
  const float factor = squares / sum * codec.scale;
  return factor < 0x1.ffp127f ? factor : 0.0f;  // beyond it bf16 is infinite; false for a NaN
}

QuantizedQuery quantize_query(const HashCodec& codec, const float* query) {
  QuantizedQuery out;
  std::array<float, kMaxHashBits> y;
  rotate(codec, query, y.data());
  float most = 0;
  for (int i = 0; i < codec.bits; ++i) most = std::abs(y[i]) > most ? std::abs(y[i]) : most;
  const float unit = most / 7.0f;
  if (unit == 0 || !std::isfinite(unit)) return out;
  for (int i = 0; i < codec.bits; ++i) {
    const float q4 = std::nearbyint(y[i] / unit);
    out.q4[i] = q4 == q4 ? static_cast<int8_t>(std::clamp(q4, -7.0f, 7.0f)) : 0;
  }
  const double length = std::sqrt(ordered_sum<double>(query, codec.head_dim, [](float v) { return double{v} * v; }));
  out.c = unit * codec.scale;
  out.length = static_cast<float>(length);
  out.weight = static_cast<float>(out.c / length);
  return out;
}

int32_t signed_sum(const QuantizedQuery& query, const uint64_t* code, int32_t words) {
  int32_t sum = 0;
  for (int i = 0; i < 64 * words; ++i) sum += code[i / 64] >> (i % 64) & 1 ? query.q4[i] : -query.q4[i];
  return sum;
}

void asymmetric_block_scores(const BlockCodes& blocks, std::span<const QuantizedQuery> queries, float* scores) {
  const int count = (blocks.len + blocks.block_size - 1) / blocks.block_size;
  for (int b = 0; b < count; ++b) {
    const uint64_t* codes = blocks.codes + static_cast<int64_t>(blocks.slots[b]) * blocks.block_stride;
    const auto* factors = reinterpret_cast<const uint16_t*>(codes + static_cast<int64_t>(blocks.words) * blocks.block_size);
    scores[b] = -std::numeric_limits<float>::infinity();
    for (int t = 0; t < std::min(blocks.block_size, blocks.len - b * blocks.block_size); ++t) {
      std::array<uint64_t, kMaxHashWords> code;
      for (int w = 0; w < blocks.words; ++w) code[w] = codes[w * blocks.block_size + t];
      const float factor = blocks.length_factor ? bf16_to_f32(factors[t]) : 1.0f;
      for (const QuantizedQuery& query : queries) {
        const float score = static_cast<float>(signed_sum(query, code.data(), blocks.words)) * factor * query.weight;
        scores[b] = std::max(scores[b], score);
      }
    }
  }
}

}  // namespace fovea::ref
