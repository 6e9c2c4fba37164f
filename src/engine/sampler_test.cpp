#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

namespace fovea {
namespace {

std::map<TokenId, int> draw(std::vector<float> logits, SamplingParams p, int times,
                            std::vector<TokenId> history = {}) {
  Sampler sampler(static_cast<int32_t>(logits.size()));
  std::map<TokenId, int> counts;
  for (int i = 0; i < times; ++i) {
    auto copy = logits;
    ++counts[sampler.sample(copy, history, p, sample_uniform(1, 0, i))];
  }
  return counts;
}

SamplingParams with(float temperature) {
  SamplingParams p;
  p.temperature = temperature;
  return p;
}

TEST(Sampler, GreedyTakesTheLowestIdOfATie) {
  EXPECT_EQ(draw({1, 3, 3, 2}, with(0), 3), (std::map<TokenId, int>{{1, 3}}));
}

TEST(Sampler, FrequenciesFollowTheSoftmax) {
  const std::vector<float> logits = {0.0f, 1.0f, 2.0f, -1.0f};
  const auto counts = draw(logits, with(1.0f), 40000);
  double total = 0;
  for (float l : logits) total += std::exp(l);
  for (TokenId id = 0; id < 4; ++id)
    EXPECT_NEAR(counts.at(id) / 40000.0, std::exp(logits[id]) / total, 0.01) << id;
}

TEST(Sampler, TemperatureSharpens) {
  const auto counts = draw({0, 1}, with(0.5f), 20000);
  EXPECT_NEAR(counts.at(1) / 20000.0, std::exp(2.0) / (1 + std::exp(2.0)), 0.01);
}

TEST(Sampler, TopKKeepsTheLowerIdOfATie) {
  SamplingParams p = with(1.0f);
  p.top_k = 2;
  const auto counts = draw({1, 2, 2, 2}, p, 1000);
  EXPECT_EQ(counts.size(), 2u);
  EXPECT_TRUE(counts.contains(1) && counts.contains(2));
}

TEST(Sampler, TopPKeepsTheCrossingToken) {
  // Probabilities .5, .25, .15, .1: top_p .6 needs the second one to cross.
  SamplingParams p = with(1.0f);
  p.top_p = 0.6f;
  const auto counts = draw({std::log(.5f), std::log(.25f), std::log(.15f), std::log(.1f)}, p, 20000);
  EXPECT_EQ(counts.size(), 2u);
  EXPECT_NEAR(counts.at(0) / 20000.0, 2.0 / 3, 0.015);
}

TEST(Sampler, MinPIsRelativeToTheMostLikely) {
  SamplingParams p = with(1.0f);
  p.min_p = 0.4f;
  const auto counts = draw({std::log(.5f), std::log(.25f), std::log(.15f), std::log(.1f)}, p, 5000);
  EXPECT_EQ(counts.size(), 2u);
}

TEST(Sampler, RepetitionPenaltyCountsEachTokenOnce) {
  SamplingParams p = with(0);
  p.repetition_penalty = 2.0f;
  EXPECT_EQ(draw({3.0f, 2.0f, -1.0f}, p, 1, {0, 0, 0}).begin()->first, 1);  // 3 -> 1.5, not 3/8
  EXPECT_EQ(draw({-1.0f, -1.5f}, p, 1, {0}).begin()->first, 1);             // -1 -> -2: penalised away from zero
}

TEST(Sampler, AUniformNearOneStaysInside) {
  Sampler sampler(3);
  std::vector<float> logits = {0, 0, -INFINITY};
  EXPECT_EQ(sampler.sample(logits, {}, with(1.0f), std::nextafter(1.0, 0.0)), 1);
}

TEST(Sampler, UniformsRepeatAndDiffer) {
  EXPECT_EQ(sample_uniform(5, 1, 7), sample_uniform(5, 1, 7));
  EXPECT_NE(sample_uniform(5, 1, 7), sample_uniform(5, 2, 7));
  EXPECT_NE(sample_uniform(5, 1, 7), sample_uniform(6, 1, 7));
  double sum = 0;
  for (int i = 0; i < 10000; ++i) sum += sample_uniform(0, 0, i);
  EXPECT_NEAR(sum / 10000, 0.5, 0.02);
}

TEST(Sampler, ImpossibleValuesAreNamed) {
  SamplingParams p;
  p.top_p = 0.0f;
  EXPECT_NE(check_sampling(p).message().find("top_p"), std::string::npos);
  p = {};
  p.temperature = NAN;
  EXPECT_FALSE(check_sampling(p).ok());
  p = {};
  p.stop = {""};
  EXPECT_FALSE(check_sampling(p).ok());
  EXPECT_TRUE(check_sampling(SamplingParams{}).ok());
}

}  // namespace
}  // namespace fovea
