#include "model/rope.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace fovea {
namespace {

// theta ^ (2i / head_dim), the period of pair i in units of 2 pi tokens.
std::vector<float> base_periods(double theta, int head_dim) {
  const int pairs = head_dim / 2;
  const auto base = static_cast<float>(theta);
  std::vector<float> out(static_cast<size_t>(pairs));
  for (int i = 0; i < pairs; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
    out[i] = static_cast<float>(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  return out;
}

// Llama 3.1: long waves are stretched by factor, short ones kept, those between blended.
float llama3_scaled(float inv_freq, const RopeConfig& rope) {
  const auto original = static_cast<float>(rope.original_max_position);
  const auto factor = static_cast<float>(rope.factor);
  const auto low_wavelength = static_cast<float>(rope.original_max_position / rope.low_freq_factor);
  const auto high_wavelength = static_cast<float>(rope.original_max_position / rope.high_freq_factor);
  // A number divided by a tensor is its reciprocal times the number in torch: one rounding more, kept here.
  const float wavelength = (1.0f / inv_freq) * static_cast<float>(2 * M_PI);
  if (wavelength > low_wavelength) return inv_freq / factor;
  if (wavelength < high_wavelength) return inv_freq;
  const float turns = (1.0f / wavelength) * original;
  const float smooth =
      (turns - static_cast<float>(rope.low_freq_factor)) / static_cast<float>(rope.high_freq_factor - rope.low_freq_factor);
  return (1.0f - smooth) * inv_freq / factor + smooth * inv_freq;
}

// YaRN's ramp over the pairs: 0 keeps the frequency, 1 divides it by factor.
struct Ramp {
  float low, width;
  float at(int pair) const { return std::clamp((static_cast<float>(pair) - low) / width, 0.0f, 1.0f); }
};

Ramp yarn_ramp(const RopeConfig& rope, int head_dim) {
  const auto dim_of_turns = [&](double turns) {
    return head_dim * std::log(rope.original_max_position / (turns * 2 * M_PI)) / (2 * std::log(rope.theta));
  };
  double low = dim_of_turns(rope.beta_fast);
  double high = dim_of_turns(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(head_dim - 1));
  if (low == high) high += 0.001;  // no division by zero
  return {static_cast<float>(low), static_cast<float>(high - low)};
}

}  // namespace

std::vector<float> rope_inv_freq(const RopeConfig& rope, int head_dim) {
  FOVEA_CHECK(head_dim > 0 && head_dim % 2 == 0);
  std::vector<float> out = base_periods(rope.theta, head_dim);
  const auto factor = static_cast<float>(rope.factor);
  FOVEA_CHECK(rope.kind != RopeKind::divided || rope.divisors.size() == out.size());
  const Ramp ramp = rope.kind == RopeKind::yarn ? yarn_ramp(rope, head_dim) : Ramp{};
  for (size_t i = 0; i < out.size(); ++i) {
    const float period = out[i];
    const float inv_freq = 1.0f / period;
    switch (rope.kind) {
      case RopeKind::none_scaling:
        out[i] = inv_freq;
        break;
      case RopeKind::linear:
        out[i] = inv_freq / factor;
        break;
      case RopeKind::llama3:
        out[i] = llama3_scaled(inv_freq, rope);
        break;
      case RopeKind::divided:
        out[i] = inv_freq / rope.divisors[i];
        break;
      case RopeKind::yarn: {
        const float keep = 1.0f - ramp.at(static_cast<int>(i));
        out[i] = 1.0f / (factor * period) * (1.0f - keep) + inv_freq * keep;
        break;
      }
    }
  }
  return out;
}

float rope_attention_scaling(const RopeConfig& rope) {
  return rope.kind == RopeKind::yarn ? static_cast<float>(rope.attention_factor) : 1.0f;
}

void rope_cos_sin(std::span<const float> inv_freq, float scaling, int64_t position, float* cos, float* sin) {
  const auto at = static_cast<float>(position);
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    const float angle = at * inv_freq[i];
    cos[i] = std::cos(angle) * scaling;
    sin[i] = std::sin(angle) * scaling;
  }
}

}  // namespace fovea
