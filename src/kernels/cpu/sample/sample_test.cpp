#include "kernels/cpu/sample/sample.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <vector>

#include "kernels/ref/sample.h"

namespace fovea {
namespace {

// By the reference and by the CPU's: both must agree.
void sample_twice(const SampleParams& p) {
  ref::sample(p);
  const std::vector<int32_t> want(p.tokens, p.tokens + p.rows);
  cpu::Sample sample;
  sample.prepare(p.vocab);
  sample.run(p);
  EXPECT_EQ(want, std::vector<int32_t>(p.tokens, p.tokens + p.rows));
}

struct Choice {
  float temperature = 1.0f;
  int32_t top_k = 0;
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
};

Choice with(float temperature) { return {.temperature = temperature}; }

int32_t choose(const std::vector<float>& logits, const Choice& c, float uniform, const std::vector<int32_t>& history = {}) {
  const std::vector<int32_t> indptr = {0, static_cast<int32_t>(history.size())};
  int32_t token = -1;
  SampleParams p;
  p.logits = logits.data();
  p.rows = 1;
  p.vocab = static_cast<int32_t>(logits.size());
  p.temperature = &c.temperature;
  p.top_k = &c.top_k;
  p.top_p = &c.top_p;
  p.min_p = &c.min_p;
  p.repetition_penalty = &c.repetition_penalty;
  p.uniform = &uniform;
  p.history = history.data();
  p.history_indptr = indptr.data();
  p.tokens = &token;
  sample_twice(p);
  return token;
}

// How often each token comes out where the uniforms are spread evenly.
std::map<int32_t, int> draw(const std::vector<float>& logits, const Choice& c, int times,
                            const std::vector<int32_t>& history = {}) {
  std::map<int32_t, int> counts;
  for (int i = 0; i < times; ++i) ++counts[choose(logits, c, (static_cast<float>(i) + 0.5f) / static_cast<float>(times), history)];
  return counts;
}

TEST(Sample, GreedyTakesTheLowestIdOfATie) { EXPECT_EQ(draw({1, 3, 3, 2}, with(0), 3), (std::map<int32_t, int>{{1, 3}})); }

TEST(Sample, FrequenciesFollowTheSoftmax) {
  const std::vector<float> logits = {0.0f, 1.0f, 2.0f, -1.0f};
  const auto counts = draw(logits, with(1.0f), 40000);
  double total = 0;
  for (float l : logits) total += std::exp(l);
  for (int32_t id = 0; id < 4; ++id) EXPECT_NEAR(counts.at(id) / 40000.0, std::exp(logits[id]) / total, 0.01) << id;
}

TEST(Sample, TemperatureSharpens) {
  const auto counts = draw({0, 1}, with(0.5f), 20000);
  EXPECT_NEAR(counts.at(1) / 20000.0, std::exp(2.0) / (1 + std::exp(2.0)), 0.01);
}

TEST(Sample, TopKKeepsTheLowerIdOfATie) {
  Choice p = with(1.0f);
  p.top_k = 2;
  const auto counts = draw({1, 2, 2, 2}, p, 1000);
  EXPECT_EQ(counts.size(), 2u);
  EXPECT_TRUE(counts.contains(1) && counts.contains(2));
}

TEST(Sample, TopPKeepsTheCrossingToken) {
  // Probabilities .5, .25, .15, .1: top_p .6 needs the second one to cross.
  Choice p = with(1.0f);
  p.top_p = 0.6f;
  const auto counts = draw({std::log(.5f), std::log(.25f), std::log(.15f), std::log(.1f)}, p, 20000);
  EXPECT_EQ(counts.size(), 2u);
  EXPECT_NEAR(counts.at(0) / 20000.0, 2.0 / 3, 0.015);
}

TEST(Sample, MinPIsRelativeToTheMostLikely) {
  Choice p = with(1.0f);
  p.min_p = 0.4f;
  const auto counts = draw({std::log(.5f), std::log(.25f), std::log(.15f), std::log(.1f)}, p, 5000);
  EXPECT_EQ(counts.size(), 2u);
}

TEST(Sample, RepetitionPenaltyCountsEachTokenOnce) {
  Choice p = with(0);
  p.repetition_penalty = 2.0f;
  EXPECT_EQ(draw({3.0f, 2.0f, -1.0f}, p, 1, {0, 0, 0}).begin()->first, 1);  // 3 -> 1.5, not 3/8
  EXPECT_EQ(draw({-1.0f, -1.5f}, p, 1, {0}).begin()->first, 1);             // -1 -> -2: penalised away from zero
}

TEST(Sample, AUniformNearOneStaysInside) { EXPECT_EQ(choose({0, 0, -INFINITY}, with(1.0f), std::nextafter(1.0f, 0.0f)), 1); }

// Whatever was filtered before, tokens are walked in ascending id.
TEST(Sample, KeptTokensAreWalkedByIdNotByRank) {
  const std::vector<float> logits = {std::log(.1f), std::log(.6f), std::log(.05f), std::log(.25f)};
  for (const Choice& c : {Choice{}, Choice{.top_k = 4}, Choice{.top_p = 0.999f}, Choice{.min_p = 0.01f}}) {
    EXPECT_EQ(choose(logits, c, 0.05f), 0);
    EXPECT_EQ(choose(logits, c, 0.12f), 1);
    EXPECT_EQ(choose(logits, c, 0.97f), 3);
  }
}

TEST(Sample, RowsShareLogitsThroughTheirIndex) {
  const std::vector<float> logits = {0, 5, 0, 9, 0, 0}, zero(3, 0.0f), one(3, 1.0f);
  const std::vector<int32_t> index = {1, 0, 1}, none(3, 0);
  std::vector<int32_t> tokens(3, -1);
  SampleParams p;
  p.logits = logits.data();
  p.rows = 3;
  p.vocab = 3;
  p.temperature = p.min_p = p.uniform = zero.data();
  p.top_k = none.data();
  p.top_p = p.repetition_penalty = one.data();
  p.row_index = index.data();
  p.tokens = tokens.data();
  sample_twice(p);
  EXPECT_EQ(tokens, (std::vector<int32_t>{0, 1, 0}));
}

TEST(Sample, EqualsTheReferenceOnRandomRows) {
  std::mt19937 rng(3);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::uniform_real_distribution<float> uniform(0.0f, 1.0f);
  for (int round = 0; round < 300; ++round) {
    std::vector<float> logits(1 + rng() % (round % 4 == 0 ? 4000 : 300));
    for (float& x : logits) x = std::round(normal(rng) * 4.0f) / 4.0f;  // with ties
    Choice c{.temperature = 0.2f + uniform(rng), .top_k = static_cast<int32_t>(rng() % 40)};
    if (rng() % 2) c.top_k = 0;
    if (rng() % 2) c.top_p = 0.05f + 0.95f * uniform(rng);
    if (rng() % 2) c.min_p = 0.2f * uniform(rng);
    if (rng() % 2) c.repetition_penalty = 1.0f + uniform(rng);
    std::vector<int32_t> history(rng() % 20);
    for (int32_t& id : history) id = static_cast<int32_t>(rng() % (logits.size() + 2)) - 1;
    choose(logits, c, uniform(rng), history);
  }
}

}  // namespace
}  // namespace fovea
