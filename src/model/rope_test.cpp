// The frequencies themselves are held against transformers in checkpoint_golden_test; here: known values and
// limits.
#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <utility>

namespace fovea {
namespace {

constexpr int kHeadDims[] = {64, 80, 96, 128, 192, 256};

RopeConfig rope(RopeKind kind, double factor = 1, double original = 0) {
  RopeConfig r;
  r.kind = kind;
  r.factor = factor;
  r.original_max_position = original;
  return r;
}

TEST(Rope, DefaultIsAPowerOfTheta) {
  for (const int d : kHeadDims) {
    const std::vector<float> f = rope_inv_freq(rope(RopeKind::none_scaling), d);
    ASSERT_EQ(f.size(), static_cast<size_t>(d / 2));
    EXPECT_EQ(f[0], 1.0f);
    for (int i = 0; i < d / 2; ++i) EXPECT_NEAR(f[i], std::pow(10000.0, -2.0 * i / d), 1e-6 * f[i]);
  }
}

TEST(Rope, LinearDividesAll) {
  const std::vector<float> plain = rope_inv_freq(rope(RopeKind::none_scaling), 128);
  const std::vector<float> f = rope_inv_freq(rope(RopeKind::linear, 4), 128);
  for (size_t i = 0; i < f.size(); ++i) EXPECT_EQ(f[i], plain[i] / 4);
}

// Llama 3.2 (theta 500000, factor 32, 8192 tokens), as transformers 5 prints them.
TEST(Rope, Llama3KeepsShortWavesAndStretchesLongOnes) {
  RopeConfig r = rope(RopeKind::llama3, 32, 8192);
  r.theta = 500000;
  r.low_freq_factor = 1;
  r.high_freq_factor = 4;
  RopeConfig plain_config = rope(RopeKind::none_scaling);
  plain_config.theta = 500000;
  const std::vector<float> plain = rope_inv_freq(plain_config, 64);
  const std::vector<float> f = rope_inv_freq(r, 64);
  int kept = 0, stretched = 0, blended = 0;
  for (size_t i = 0; i < f.size(); ++i) {
    const double wave = 2 * M_PI / plain[i];
    if (wave < 8192 / 4.0) {
      EXPECT_EQ(f[i], plain[i]);
      ++kept;
    } else if (wave > 8192) {
      EXPECT_EQ(f[i], plain[i] / 32);
      ++stretched;
    } else {
      EXPECT_LT(f[i], plain[i]);
      EXPECT_GT(f[i], plain[i] / 32);
      ++blended;
    }
  }
  EXPECT_GT(kept, 5);
  EXPECT_GT(stretched, 5);
  EXPECT_GT(blended, 0);
  const std::pair<int, double> kPrinted[] = {{13, 0.00483942124992609},  {14, 0.0032114461064338684}, {15, 0.0012905480107292533},
                                             {16, 0.000429556705057621}, {17, 9.708286233944818e-05}, {31, 9.418306490260875e-08}};
  for (const auto& [pair, value] : kPrinted) EXPECT_NEAR(f[pair], value, 2.5e-7 * value) << pair;
}

TEST(Rope, YarnRampsFromKeptToDivided) {
  for (const bool truncate : {true, false}) {
    RopeConfig r = rope(RopeKind::yarn, 8, 2048);
    r.truncate = truncate;
    const std::vector<float> plain = rope_inv_freq(rope(RopeKind::none_scaling), 128);
    const std::vector<float> f = rope_inv_freq(r, 128);
    EXPECT_EQ(f.front(), plain.front());
    EXPECT_NEAR(f.back(), plain.back() / 8, 1e-12);
    float before = 1.0f;
    for (size_t i = 0; i < f.size(); ++i) {
      const float share = f[i] / plain[i];
      EXPECT_LE(share, before + 1e-6f);
      EXPECT_GE(share, 0.125f - 1e-6f);
      before = share;
    }
  }
}

// The ramp's two ends fall together where both numbers of turns are the same: no NaN.
TEST(Rope, YarnWithoutARampHasNoNan) {
  RopeConfig r = rope(RopeKind::yarn, 4, 4096);
  r.beta_fast = r.beta_slow = 4;
  r.truncate = false;
  for (const float f : rope_inv_freq(r, 64)) EXPECT_TRUE(std::isfinite(f) && f > 0);
  r.original_max_position = 1;  // both ends below 0
  for (const float f : rope_inv_freq(r, 64)) EXPECT_TRUE(std::isfinite(f) && f > 0);
}

TEST(Rope, OnlyYarnScalesAttention) {
  RopeConfig r = rope(RopeKind::yarn, 4, 4096);
  r.attention_factor = 1.25;
  EXPECT_EQ(rope_attention_scaling(r), 1.25f);
  r.kind = RopeKind::llama3;
  EXPECT_EQ(rope_attention_scaling(r), 1.0f);
}

TEST(Rope, AnglesAreRoundedToFloat32First) {
  const std::vector<float> f = rope_inv_freq(rope(RopeKind::none_scaling), 64);
  std::vector<float> cos(f.size()), sin(f.size());
  for (const int64_t position : {int64_t{0}, int64_t{1}, int64_t{5000}, int64_t{123'456}, int64_t{16'777'217}}) {
    rope_cos_sin(f, 1.5f, position, cos.data(), sin.data());
    for (size_t i = 0; i < f.size(); ++i) {
      const float angle = static_cast<float>(position) * f[i];
      EXPECT_NEAR(cos[i], 1.5 * std::cos(static_cast<double>(angle)), 3e-7);
      EXPECT_NEAR(sin[i], 1.5 * std::sin(static_cast<double>(angle)), 3e-7);
    }
  }
}

}  // namespace
}  // namespace fovea
