#include "kernels/ref/dsa_index.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/common/convert.h"

namespace fovea {
namespace {

TEST(IndexWeightFactor, IsTheProductOfBothScales) {
  EXPECT_FLOAT_EQ(ref::index_weight_factor(64, 128), 0.0110485435f);
  EXPECT_EQ(ref::index_weight_factor(4, 16), 0.125f);
}

TEST(Ue8m0Scale, IsTheLeastPowerOfTwoThatFits) {
  EXPECT_EQ(ref::ue8m0_scale(3.5f), 0x1p-7f);
  EXPECT_EQ(ref::ue8m0_scale(448.0f), 1.0f);
  EXPECT_EQ(ref::ue8m0_scale(449.0f), 2.0f);
  EXPECT_EQ(ref::ue8m0_scale(std::nextafter(448.0f, 449.0f)), 2.0f);
  EXPECT_EQ(ref::ue8m0_scale(0.0f), 0x1p-22f);
  EXPECT_EQ(ref::ue8m0_scale(1e-4f), 0x1p-22f);
  EXPECT_EQ(ref::ue8m0_scale(1e30f), 0x1p91f);
}

TEST(IndexHadamard, IsOrthogonalUpToBf16) {
  std::vector<float> x = {1, 0, 0, 0};
  ref::index_hadamard(x.data(), 4);
  EXPECT_EQ(x, (std::vector<float>{0.5f, 0.5f, 0.5f, 0.5f}));
  x = {1, 2, 3, 4};
  ref::index_hadamard(x.data(), 4);
  EXPECT_EQ(x, (std::vector<float>{5, -1, -2, 0}));
  x = {1.001f, 0, 0, 0};  // rounds to 1 on the way in
  ref::index_hadamard(x.data(), 4);
  EXPECT_EQ(x[3], 0.5f);
}

TEST(IndexQuantise, RoundsToNearestEvenUnderTheScale) {
  std::vector<float> x = {448, 17, 19, -0.5f};  // steps of 2 above 16: 17 and 19 are halfway
  EXPECT_EQ(ref::index_quantise(x.data(), 4), 1.0f);
  EXPECT_EQ(x, (std::vector<float>{448, 16, 20, -0.5f}));
  x = {450, 34, 0, 0};
  EXPECT_EQ(ref::index_quantise(x.data(), 4), 2.0f);
  EXPECT_EQ(x, (std::vector<float>{224, 16, 0, 0}));  // 225 lies between 224 and 240
}

struct Written {
  std::vector<float> q, k, weights, norm_weight, norm_bias, cos, sin, scale;
  std::vector<std::byte> plane;
  std::vector<int64_t> slots;
  IndexWriteParams p;

  Written(int32_t tokens, int32_t heads, int32_t dim, int32_t rope_dim, IndexPrecision precision, uint32_t seed) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>& v, int64_t n) {
      v.resize(n);
      for (float& x : v) x = normal(rng);
    };
    fill(q, int64_t{tokens} * heads * dim);
    fill(k, int64_t{tokens} * dim);
    fill(weights, int64_t{tokens} * heads);
    fill(norm_weight, dim);
    fill(norm_bias, dim);
    fill(cos, int64_t{tokens} * rope_dim / 2);
    sin = cos;
    for (float& x : sin) x = std::sin(x);
    for (float& x : cos) x = std::cos(x);
    plane.assign(static_cast<size_t>(tokens + 8) * dim * index_element_bytes(precision), std::byte{0x5a});
    scale.assign(tokens + 8, -3.0f);
    for (int32_t t = 0; t < tokens; ++t) slots.push_back(tokens + 7 - t);
    p.tokens = tokens;
    p.heads = heads;
    p.q = q.data();
    p.k = k.data();
    p.weights = weights.data();
    p.norm_weight = norm_weight.data();
    p.norm_bias = norm_bias.data();
    p.rope_dim = rope_dim;
    p.cos = cos.data();
    p.sin = sin.data();
    p.slot_mapping = slots.data();
    p.keys = {precision, plane.data(), precision == IndexPrecision::fp8 ? scale.data() : nullptr, 8, dim, nullptr, 0};
  }
};

TEST(IndexWrite, NormalisesRotatesAndStoresTheKey) {
  Written w(3, 2, 16, 8, IndexPrecision::exact, 1);
  const std::vector<float> k = w.k;
  ref::index_write(w.p);
  for (int32_t t = 0; t < 3; ++t) {
    double mean = 0, var = 0;
    for (int i = 0; i < 16; ++i) mean += k[t * 16 + i] / 16.0;
    for (int i = 0; i < 16; ++i) var += (k[t * 16 + i] - mean) * (k[t * 16 + i] - mean) / 16;
    std::vector<double> want(16);
    for (int i = 0; i < 16; ++i) want[i] = (k[t * 16 + i] - mean) / std::sqrt(var + 1e-6) * w.norm_weight[i] + w.norm_bias[i];
    for (int i = 0; i < 4; ++i) {
      const double a = want[i], b = want[i + 4], c = w.cos[t * 4 + i], s = w.sin[t * 4 + i];
      want[i] = a * c - b * s;
      want[i + 4] = b * c + a * s;
    }
    std::vector<float> got(16);
    ref::index_load(w.p.keys, w.slots[t], got.data());
    for (int i = 0; i < 16; ++i) EXPECT_NEAR(got[i], want[i], 1e-5) << t << " " << i;
  }
}

TEST(IndexWrite, SkipsNegativeSlotsAndTouchesNothingElse) {
  for (IndexPrecision precision : {IndexPrecision::exact, IndexPrecision::bf16, IndexPrecision::fp8}) {
    Written w(4, 2, 16, 4, precision, 2);
    w.slots[2] = -1;
    const size_t row = 16 * index_element_bytes(precision);
    ref::index_write(w.p);
    for (int64_t slot = 0; slot < 12; ++slot) {
      const bool written = slot == 8 || slot == 10 || slot == 11;
      const bool untouched = std::all_of(w.plane.begin() + slot * row, w.plane.begin() + (slot + 1) * row,
                                         [](std::byte b) { return b == std::byte{0x5a}; });
      EXPECT_EQ(untouched, !written) << slot;
      if (precision == IndexPrecision::fp8) {
        EXPECT_EQ(w.scale[slot] == -3.0f, !written) << slot;
      }
    }
  }
}

// A rotation and a Hadamard transform keep scalar products: the three modes score alike, up to their rounding.
TEST(IndexWrite, ModesScoreAlikeWithinTheirRounding) {
  std::vector<std::vector<float>> scores;
  for (IndexPrecision precision : {IndexPrecision::exact, IndexPrecision::bf16, IndexPrecision::fp8}) {
    Written w(32, 4, 128, 64, precision, 3);
    ref::index_write(w.p);
    std::vector<float>& out = scores.emplace_back();
    std::vector<float> key(128);
    for (int32_t s = 0; s < 32; ++s) {
      ref::index_load(w.p.keys, w.slots[s], key.data());
      float sum = 0;
      for (int h = 0; h < 4; ++h) {
        float dot = 0;
        for (int i = 0; i < 128; ++i) dot += w.q[(31 * 4 + h) * 128 + i] * key[i];
        sum += w.weights[31 * 4 + h] * std::max(dot, 0.0f);
      }
      out.push_back(sum * (precision == IndexPrecision::fp8 ? w.scale[w.slots[s]] : 1.0f));
    }
  }
  for (int s = 0; s < 32; ++s) {
    EXPECT_NEAR(scores[1][s], scores[0][s], 0.03) << s;
    EXPECT_NEAR(scores[2][s], scores[0][s], 0.2) << s;
  }
}

}  // namespace
}  // namespace fovea
