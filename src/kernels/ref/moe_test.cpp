#include "kernels/ref/moe.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <random>
#include <vector>

#include "kernels/common/convert.h"

namespace fovea {
namespace {

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// The gate is the identity, so a row's x is its logits.
struct Routed {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};
Routed route(const std::vector<float>& logits, MoeRouteParams p) {
  const auto n = static_cast<int32_t>(logits.size());
  std::vector<float> gate(static_cast<size_t>(n) * n, 0.0f);
  for (int32_t i = 0; i < n; ++i) gate[static_cast<size_t>(i) * n + i] = 1.0f;
  Routed r{std::vector<int32_t>(p.top_k, -1), std::vector<float>(p.top_k)};
  p.x = logits.data();
  p.rows = 1;
  p.hidden = p.experts = n;
  p.gate = weight_view(gate.data(), DType::f32, n, n);
  p.ids = r.ids.data();
  p.weights = r.weights.data();
  ref::moe_route(p);
  return r;
}

TEST(RefMoeRoute, BestFirstWeightsNormalisedAndScaled) {
  const Routed r = route({0.5f, 2.0f, -1.0f, 1.0f}, {.top_k = 2, .scaling = 2.5f});
  EXPECT_EQ(r.ids, (std::vector<int32_t>{1, 3}));
  const float a = sigmoid(2.0f), b = sigmoid(1.0f);
  EXPECT_FLOAT_EQ(r.weights[0], 2.5f * a / (a + b));
  EXPECT_FLOAT_EQ(r.weights[1], 2.5f * b / (a + b));
}

TEST(RefMoeRoute, TheBiasChoosesAndDoesNotWeigh) {
  const std::vector<float> bias = {0, 0, 10, 0};
  const Routed r = route({0.5f, 2.0f, -1.0f, 1.0f}, {.bias = bias.data(), .top_k = 2, .normalise = false});
  EXPECT_EQ(r.ids, (std::vector<int32_t>{2, 1}));
  EXPECT_FLOAT_EQ(r.weights[0], sigmoid(-1.0f));
  EXPECT_FLOAT_EQ(r.weights[1], sigmoid(2.0f));
}

TEST(RefMoeRoute, TiesGoToTheLowerIndex) {
  EXPECT_EQ(route({1, 3, 3, 1, 1, 3}, {.top_k = 4}).ids, (std::vector<int32_t>{1, 2, 5, 0}));
  // Groups {0, 1}, {2, 3}, {4, 5} tie as well: the first two stay.
  EXPECT_EQ(route({2, 1, 1, 2, 2, 1}, {.groups = 3, .topk_groups = 2, .top_k = 3}).ids, (std::vector<int32_t>{0, 3, 1}));
}

// The best expert stands in a group whose two best are weaker together.
TEST(RefMoeRoute, AGroupCountsByItsTwoBest) {
  const std::vector<float> logits = {5, -9, 1, 1, 0, 0.5f};
  EXPECT_EQ(route(logits, {.groups = 3, .topk_groups = 1, .top_k = 2}).ids, (std::vector<int32_t>{2, 3}));
  EXPECT_EQ(route(logits, {.groups = 3, .topk_groups = 2, .top_k = 3}).ids, (std::vector<int32_t>{2, 3, 5}));
  EXPECT_EQ(route(logits, {.groups = 3, .topk_groups = 1, .group_top = 1, .top_k = 2}).ids, (std::vector<int32_t>{0, 1}));
}

// With every biased score of a kept group below zero, a masked group (were it 0) would win.
TEST(RefMoeRoute, AMaskedGroupNeverWins) {
  const std::vector<float> bias = {-3, -3, -4, -4};
  EXPECT_EQ(route({0, 0, 0, 0}, {.bias = bias.data(), .groups = 2, .topk_groups = 1, .top_k = 2}).ids,
            (std::vector<int32_t>{0, 1}));
}

TEST(RefMoeRoute, Softmax) {
  const Routed r =
      route({std::log(1.0f), std::log(2.0f), std::log(5.0f)}, {.top_k = 2, .scoring = ExpertScoring::softmax, .normalise = false});
  EXPECT_EQ(r.ids, (std::vector<int32_t>{2, 1}));
  EXPECT_FLOAT_EQ(r.weights[0], 0.625f);
  EXPECT_FLOAT_EQ(r.weights[1], 0.25f);
}

TEST(RefMoeExperts, IsTheWeightedSumOfTheChosen) {
  const int32_t rows = 3, hidden = 5, inter = 4, experts = 3, top_k = 2;
  std::mt19937 rng(3);
  std::normal_distribution<float> normal;
  std::vector<float> x(rows * hidden), out(rows * hidden, NAN), w(3 * experts * hidden * inter);
  for (float& f : x) f = normal(rng);
  for (float& f : w) f = normal(rng);
  const std::vector<int32_t> ids = {2, 0, 0, 2, 2, 1};
  const std::vector<float> weights = {0.5f, 2, -1, 0.25f, 1, 1};
  std::vector<FeedForwardWeights> expert_weights;
  for (int32_t e = 0; e < experts; ++e) {
    const auto at = [&](int32_t i) { return &w[(3 * e + i) * hidden * inter]; };
    expert_weights.push_back({weight_view(at(0), DType::f32, inter, hidden), weight_view(at(1), DType::f32, inter, hidden),
                              weight_view(at(2), DType::f32, hidden, inter)});
  }
  ref::moe_experts({x.data(), out.data(), rows, hidden, inter, experts, top_k, ids.data(), weights.data(), expert_weights.data()});
  for (int32_t t = 0; t < rows; ++t) {
    std::vector<double> want(hidden, 0.0);
    for (int32_t i = 0; i < top_k; ++i) {
      const float* base = &w[3 * ids[t * top_k + i] * hidden * inter];
      for (int32_t j = 0; j < inter; ++j) {
        double g = 0, u = 0;
        for (int32_t k = 0; k < hidden; ++k) {
          g += base[j * hidden + k] * x[t * hidden + k];
          u += base[(inter + j) * hidden + k] * x[t * hidden + k];
        }
        const double a = g / (1 + std::exp(-g)) * u * weights[t * top_k + i];
        for (int32_t k = 0; k < hidden; ++k) want[k] += a * base[2 * inter * hidden + k * inter + j];
      }
    }
    for (int32_t k = 0; k < hidden; ++k) EXPECT_NEAR(out[t * hidden + k], want[k], 1e-4);
  }
}

}  // namespace
}  // namespace fovea
