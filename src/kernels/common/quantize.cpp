#include "kernels/common/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "kernels/common/convert.h"

namespace fovea {
namespace {

constexpr int kLanes = 8;  // sums kept apart, so that they fill registers; parts are multiples of it

// Below it a scale is 0 in f16 whatever the codes: taken for 0, so that no inverse overflows.
constexpr float kLeast = 1e-12f;

float sum(const float* lanes) {
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

void put_half(float x, uint8_t* out) {
  const uint16_t bits = f32_to_f16(x);
  std::memcpy(out, &bits, sizeof bits);
}
float as_half(float x) { return f16_to_f32(f32_to_f16(x)); }
float inverse_of(float x) { return std::fabs(x) < kLeast ? 0 : 1 / x; }

// The nearest code. Adding and taking away this much rounds to the nearest integer, in one instruction each.
float code(float x, float low, float high) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23
  return std::clamp(x, low, high) + kRound - kRound;
}

// ---- values s l, with l from -levels to levels - 1 ----

// The s with the least squares error over x[0, n), 0 where all are 0; it may be negative, since there is one more code below 0.
float fit_scale(const float* x, int n, float levels) {
  float extreme = 0;
  for (int i = 0; i < n; ++i) extreme = std::fabs(x[i]) > std::fabs(extreme) ? x[i] : extreme;
  if (std::fabs(extreme) < kLeast) return 0;
  float best = 0, most = 0;
  // For codes l the best s is xl / ll, and takes xl^2 / ll off the error. The codes are those that make of the extreme one about
  // -levels: a little more cuts it off, a little less leaves a code unused.
  constexpr int kSteps = 9;
  for (int step = -kSteps; step <= kSteps; ++step) {
    const float inverse = -(levels + 0.1f * static_cast<float>(step)) / extreme;
    float xl[kLanes] = {}, ll[kLanes] = {};
    for (int i = 0; i < n; i += kLanes) {
      for (int k = 0; k < kLanes; ++k) {
        const float l = code(x[i + k] * inverse, -levels, levels - 1);
        xl[k] += x[i + k] * l;
        ll[k] += l * l;
      }
    }
    const float product = sum(xl), squares = sum(ll);
    if (squares == 0 || product * product <= most * squares) continue;
    most = product * product / squares;
    best = product / squares;
  }
  return best;
}

// ---- values s l - m, with l from 0 to levels ----

struct Range {
  float scale = 0, minimum = 0;  // s, m
  float code_of(float x, float levels) const { return code((x + minimum) * inverse_of(scale), 0, levels); }
};

// Of the codes that `r` gives x[0, n).
struct RangeSums {
  float l, ll, xl;
};
RangeSums range_sums(const float* x, int n, Range r, float levels) {
  const float inverse = inverse_of(r.scale);
  float l_sum[kLanes] = {}, ll[kLanes] = {}, xl[kLanes] = {};
  for (int i = 0; i < n; i += kLanes) {
    for (int k = 0; k < kLanes; ++k) {
      const float l = code((x[i + k] + r.minimum) * inverse, 0, levels);
      l_sum[k] += l;
      ll[k] += l * l;
      xl[k] += x[i + k] * l;
    }
  }
  return {sum(l_sum), sum(ll), sum(xl)};
}

// s and m >= 0 with the least squares error over x[0, n).
Range fit_range(const float* x, int n, float levels) {
  float low = 0, high = x[0], total = 0;
  for (int i = 0; i < n; ++i) {
    low = std::min(low, x[i]);
    high = std::max(high, x[i]);
    total += x[i];
  }
  Range best{0, -low};
  if (high - low < kLeast) return best;
  float most = -std::numeric_limits<float>::infinity();  // that was taken off the error
  const auto n_f = static_cast<float>(n);
  // Codes of one range have a best range of their own: a line through (code, x).
  const auto improve = [&](Range r) {
    const RangeSums s = range_sums(x, n, r, levels);
    if (s.ll == 0) return;
    const float spread = n_f * s.ll - s.l * s.l;
    Range fit;
    if (spread > 0) {
      fit.scale = (n_f * s.xl - total * s.l) / spread;
      fit.minimum = (fit.scale * s.l - total) / n_f;
    }
    if (spread <= 0 || fit.minimum < 0) fit = {s.xl / s.ll, 0};
    const float gain = fit.scale * s.xl - fit.minimum * total;
    if (fit.scale <= 0 || gain <= most) return;
    most = gain;
    best = fit;
  };
  constexpr int kSteps = 8;
  for (int step = -kSteps; step <= kSteps; ++step) improve({(high - low) / (levels + 0.15f * static_cast<float>(step)), -low});
  for (int again = 0; again < 2; ++again) improve(best);
  return best;
}

// ---- blocks ----

// Element i < 16 in the low half of byte i, i + 16 in its high half.
void put_low_halves_first(const uint8_t* codes, uint8_t* out) {
  for (int i = 0; i < 16; ++i) out[i] = static_cast<uint8_t>((codes[i] & 15) | (codes[i + 16] & 15) << 4);
}
void put_fifth_bits(const uint8_t* codes, uint8_t* out) {
  std::memset(out, 0, 4);
  for (int i = 0; i < 32; ++i) out[i / 8] = static_cast<uint8_t>(out[i / 8] | (codes[i] >> 4) << (i % 8));
}

void make_q8_0(const float* x, uint8_t* out) {
  float most = 0;
  for (int i = 0; i < 32; ++i) most = std::max(most, std::fabs(x[i]));
  const float d = most / 127, inverse = inverse_of(d);
  put_half(d, out);
  for (int i = 0; i < 32; ++i) out[2 + i] = static_cast<uint8_t>(static_cast<int8_t>(std::round(x[i] * inverse)));
}

// d (x - levels) of 4 or 5 bits.
template <int kLevels>
void block_signed(const float* x, uint8_t* out) {
  const float d = as_half(fit_scale(x, 32, kLevels)), inverse = inverse_of(d);
  uint8_t codes[32];
  for (int i = 0; i < 32; ++i) codes[i] = static_cast<uint8_t>(code(x[i] * inverse, -kLevels, kLevels - 1) + kLevels);
  put_half(d, out);
  if (kLevels == 16) put_fifth_bits(codes, out + 2);
  put_low_halves_first(codes, out + (kLevels == 16 ? 6 : 2));
}

// Six bits for each of eight scales and minima: what unpack_k_scales takes apart.
void pack_k_scales(const uint8_t* scales, const uint8_t* mins, uint8_t* packed) {
  for (int i = 0; i < 4; ++i) {
    packed[i] = static_cast<uint8_t>(scales[i] | (scales[4 + i] >> 4) << 6);
    packed[4 + i] = static_cast<uint8_t>(mins[i] | (mins[4 + i] >> 4) << 6);
    packed[8 + i] = static_cast<uint8_t>((scales[4 + i] & 15) | (mins[4 + i] & 15) << 4);
  }
}

// The multiples of d and dmin that take the place of a fitted range: the nearest scale, and the minimum that its own codes want.
struct PackedRange {
  float scale, minimum;
};
PackedRange pack_range(const float* x, Range fit, float d, float dmin, float levels) {
  float total = 0;
  for (int i = 0; i < 32; ++i) total += x[i];
  const auto nearest_minimum = [&](float m) { return code(m * inverse_of(dmin), 0, 63); };
  const float scale = code(fit.scale * inverse_of(d), 0, 63);
  const float l = range_sums(x, 32, {d * scale, dmin * nearest_minimum(fit.minimum)}, levels).l;
  return {scale, nearest_minimum((d * scale * l - total) / 32)};
}

// d scale x - dmin min of 4 or 5 bits.
template <int kLevels>
void block_k(const float* x, uint8_t* out) {
  Range fits[8];
  float scale_max = 0, minimum_max = 0;
  for (int part = 0; part < 8; ++part) {
    fits[part] = fit_range(x + part * 32, 32, kLevels);
    scale_max = std::max(scale_max, fits[part].scale);
    minimum_max = std::max(minimum_max, fits[part].minimum);
  }
  const float d = as_half(scale_max / 63), dmin = as_half(minimum_max / 63);
  uint8_t scales[8], mins[8], codes[256];
  for (int part = 0; part < 8; ++part) {
    const PackedRange packed = pack_range(x + part * 32, fits[part], d, dmin, kLevels);
    scales[part] = static_cast<uint8_t>(packed.scale);
    mins[part] = static_cast<uint8_t>(packed.minimum);
    const Range r{d * packed.scale, dmin * packed.minimum};
    for (int i = part * 32; i < part * 32 + 32; ++i) codes[i] = static_cast<uint8_t>(r.code_of(x[i], kLevels));
  }
  put_half(d, out);
  put_half(dmin, out + 2);
  pack_k_scales(scales, mins, out + 4);
  uint8_t* low = out + (kLevels == 31 ? 48 : 16);
  for (int i = 0; i < 128; ++i) {  // 64 elements in 32 bytes, the low halves first
    const uint8_t* pair = codes + i / 32 * 64 + i % 32;
    low[i] = static_cast<uint8_t>((pair[0] & 15) | (pair[32] & 15) << 4);
  }
  if (kLevels != 31) return;
  std::memset(out + 16, 0, 32);
  for (int i = 0; i < 256; ++i) out[16 + i % 32] = static_cast<uint8_t>(out[16 + i % 32] | (codes[i] >> 4) << (i / 32));
}

void make_q6_k(const float* x, uint8_t* out) {  // d scale (x - 32)
  float fits[16], extreme = 0;
  for (int part = 0; part < 16; ++part) {
    fits[part] = fit_scale(x + part * 16, 16, 32);
    if (std::fabs(fits[part]) > std::fabs(extreme)) extreme = fits[part];
  }
  const float d = as_half(extreme / -128);
  uint8_t codes[256];
  for (int part = 0; part < 16; ++part) {
    const float scale = code(fits[part] * inverse_of(d), -128, 127), inverse = inverse_of(d * scale);
    out[192 + part] = static_cast<uint8_t>(static_cast<int8_t>(scale));
    for (int i = part * 16; i < part * 16 + 16; ++i) codes[i] = static_cast<uint8_t>(code(x[i] * inverse, -32, 31) + 32);
  }
  std::memset(out, 0, 192);
  for (int i = 0; i < 256; ++i) {
    uint8_t& low = out[i / 128 * 64 + i % 64];
    uint8_t& high = out[128 + i / 128 * 32 + i % 32];
    low = static_cast<uint8_t>(low | (codes[i] & 15) << (i / 64 % 2 * 4));
    high = static_cast<uint8_t>(high | (codes[i] >> 4) << (i / 32 % 4 * 2));
  }
  put_half(d, out + 208);
}

void block_f32(const float* x, uint8_t* out) { std::memcpy(out, x, sizeof *x); }
void block_f16(const float* x, uint8_t* out) { put_half(*x, out); }
void block_bf16(const float* x, uint8_t* out) {
  const uint16_t bits = f32_to_bf16(*x);
  std::memcpy(out, &bits, sizeof bits);
}

using MakeBlock = void (*)(const float*, uint8_t*);
MakeBlock block_maker(WeightType type) {
  switch (type) {
    case WeightType::f32:
      return block_f32;
    case WeightType::f16:
      return block_f16;
    case WeightType::bf16:
      return block_bf16;
    case WeightType::q8_0:
      return make_q8_0;
    case WeightType::q4_0:
      return block_signed<8>;
    case WeightType::q5_0:
      return block_signed<16>;
    case WeightType::q4_k:
      return block_k<15>;
    case WeightType::q5_k:
      return block_k<31>;
    case WeightType::q6_k:
      return make_q6_k;
    default:
      return nullptr;
  }
}

}  // namespace

bool can_quantize(WeightType type) { return block_maker(type) != nullptr; }

float quantize_max(WeightType type) {
  const bool wide = type == WeightType::f32 || type == WeightType::bf16;
  return wide ? std::numeric_limits<float>::max() : 65504.0f;
}

void quantize(WeightType type, const float* x, int64_t count, uint8_t* out) {
  const WeightFormat& format = weight_format(type);
  const MakeBlock block = block_maker(type);
  FOVEA_CHECK(block != nullptr && count % format.block == 0);
  for (int64_t i = 0; i < count; i += format.block, out += format.bytes) block(x + i, out);
}

}  // namespace fovea
