#include "kernels/common/random_weights.h"

#include "base/check.h"
#include "base/splitmix64.h"
#include "kernels/common/convert.h"
#include "kernels/common/dequantize.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace fovea {
namespace {

// Where a block has its float16 numbers, and the second one's share of the first that puts the average at zero.
struct Halves {
  int d = -1, m = -1;
  float share = 0;
};
Halves halves_of(WeightType type) {
  switch (type) {
    case WeightType::q4_1:
      return {0, 2, -7.5f};
    case WeightType::q5_1:
      return {0, 2, -15.5f};
    case WeightType::q2_k:
      return {80, 82, 1.5f};
    case WeightType::q3_k:
      return {108};
    case WeightType::q4_k:
      return {0, 2, 7.5f};
    case WeightType::q5_k:
      return {0, 2, 15.5f};
    case WeightType::q6_k:
      return {208};
    case WeightType::mxfp4:
    case WeightType::fp8_e4m3:
    case WeightType::int8:
    case WeightType::int4:
      return {};
    default:
      return {0};
  }
}

float deviation_of(const WeightView& w) {
  std::vector<float> row(static_cast<size_t>(w.cols));
  dequantize_row(w, 0, row.data());
  double squares = 0;
  for (const float x : row) squares += static_cast<double>(x) * x;
  return static_cast<float>(std::sqrt(squares / static_cast<double>(w.cols)));
}

}  // namespace

RandomWeights::RandomWeights(WeightType type, float deviation) : type_(type) {
  FOVEA_CHECK(!is_plain(type));
  // Made with scales of one, measured, and made smaller.
  constexpr int64_t kSample = 256 * 64;
  const uint32_t zero = type == WeightType::int4 ? 8 : 0;
  const float share = halves_of(type).share;
  m_ = f32_to_f16(share);
  scale_ = std::bit_cast<uint32_t>(1.0f) | zero;
  const WeightFormat& format = weight_format(type);
  std::vector<uint8_t> sample(static_cast<size_t>(kSample / format.block * format.bytes));
  fill(1, kSample, sample.data());
  const float d = deviation / deviation_of({sample.data(), &scale_, type, 1, kSample, static_cast<int32_t>(kSample)});
  d_ = f32_to_f16(d);
  m_ = f32_to_f16(share * f16_to_f32(d_));
  scale_ = (std::bit_cast<uint32_t>(d) & ~255u) | zero;
  exponent_ = 128 + static_cast<int>(std::lround(std::log2(d)));
}

void RandomWeights::fix_block(uint8_t* block, uint64_t random) const {
  const Halves at = halves_of(type_);
  if (at.d >= 0) std::memcpy(block + at.d, &d_, sizeof(d_));
  if (at.m >= 0) std::memcpy(block + at.m, &m_, sizeof(m_));
  if (type_ == WeightType::mxfp4) block[0] = static_cast<uint8_t>(exponent_);
  // The minimum of a part has the size of its scale.
  if (type_ == WeightType::q2_k) {
    for (int i = 0; i < 16; ++i) block[i] = static_cast<uint8_t>((block[i] & 15) * 17);
  } else if (type_ == WeightType::q4_k || type_ == WeightType::q5_k) {
    uint8_t* scales = block + 4;
    for (int i = 0; i < 4; ++i) {
      scales[4 + i] = scales[i];
      scales[8 + i] = static_cast<uint8_t>((random >> (4 * i) & 15) * 17);
    }
  }
}

// Eight a draw: a number each would take five times as long.
void RandomWeights::fill_bytes(uint64_t seed, int64_t count, uint8_t* out) const {
  const bool fp8 = type_ == WeightType::fp8_e4m3;
  uint64_t state = seed;
  for (int64_t i = 0; i < count; i += 8) {
    uint64_t bits = splitmix64(state);
    for (int64_t j = i; j < std::min(count, i + 8); ++j, bits >>= 8) {
      const auto byte = static_cast<uint8_t>(bits);
      out[j] = fp8 && (byte & 0x7f) == 0x7f ? byte ^ 1 : byte;  // that one is not a number
    }
  }
}

void RandomWeights::fill(uint64_t seed, int64_t count, uint8_t* out) const {
  const WeightFormat& format = weight_format(type_);
  if (format.bytes == 1) return fill_bytes(seed, count, out);
  uint64_t state = seed;
  for (int64_t i = 0; i < count; i += format.block, out += format.bytes) {
    uint64_t bits = 0;
    int32_t at = 0;
    for (; at + 8 <= format.bytes; at += 8) {
      bits = splitmix64(state);
      std::memcpy(out + at, &bits, 8);
    }
    bits = splitmix64(state);
    std::memcpy(out + at, &bits, static_cast<size_t>(format.bytes - at));
    fix_block(out, bits >> 32);
  }
}

RandomMatrix::RandomMatrix(WeightType type_, int64_t rows_, int64_t cols_, int32_t group_, uint64_t seed, float deviation)
    : type(type_), rows(rows_), cols(cols_), group(group_) {
  const RandomWeights random(type, deviation);
  data.resize(view().data_bytes());
  random.fill(seed, rows * cols, data.data());
  scales.assign(static_cast<size_t>(rows * view().scales_per_row()), random.scale());
}

WeightView RandomMatrix::view() const { return {data.data(), scales.data(), type, rows, cols, group}; }

}  // namespace fovea
