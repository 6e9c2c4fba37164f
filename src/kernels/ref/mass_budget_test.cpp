#include "kernels/ref/mass_budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "kernels/common/mass_levels.h"

namespace fovea::ref {
namespace {

constexpr float kNats = 64 * 1.442695f;  // levels of a score that is a logit

// Blocks whose shares of the mass fall by `factor` each, from `first` on.
HeadScores falling(int blocks, float nats) {
  HeadScores head{std::vector<float>(static_cast<size_t>(blocks)), kNats};
  for (int b = 0; b < blocks; ++b) head.scores[static_cast<size_t>(b)] = -nats * static_cast<float>(b);
  return head;
}

TEST(MassBudget, HeadsWithScatteredMassGetMore) {
  const std::vector<HeadScores> heads = {falling(200, 2.0f), falling(200, 0.01f), falling(200, 2.0f), falling(200, 0.02f)};
  const auto counts = blocks_by_mass({.split = true}, heads, 20, 0, 1);
  EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), 0), 80);
  EXPECT_EQ(counts[0], 5);  // a quarter
  EXPECT_EQ(counts[2], 5);
  EXPECT_GT(counts[1], 20);
  EXPECT_GT(counts[3], 20);
}

TEST(MassBudget, EqualHeadsShareEquallyAndTheFirstTakeWhatIsLeft) {
  const std::vector<HeadScores> alike(3, falling(100, 0.1f));
  EXPECT_EQ(blocks_by_mass({.split = true}, alike, 10, 1, 1), (std::vector<int32_t>{10, 10, 10}));
  const std::vector<HeadScores> flat(3, falling(100, 0.0f));  // one level: all or the least
  EXPECT_EQ(blocks_by_mass({.split = true}, flat, 10, 1, 1), (std::vector<int32_t>{24, 3, 3}));
  EXPECT_EQ(blocks_by_mass({.split = true}, flat, 100, 1, 1), (std::vector<int32_t>{100, 100, 100}));
}

TEST(MassBudget, AHeadStopsOnceItHoldsTheShare) {
  // Half, a quarter, an eighth, ...
  const std::vector<HeadScores> heads = {falling(50, 0.6931472f)};
  for (const auto& [share, blocks] : {std::pair{4900, 1}, {5100, 2}, {7400, 2}, {7600, 3}, {9300, 4}, {9999, 10}})
    EXPECT_EQ(blocks_by_mass({.top_p_1e4 = share}, heads, 10, 0, 0)[0], blocks) << share;
  EXPECT_EQ(blocks_by_mass({.top_p_1e4 = 5100}, heads, 10, 1, 2)[0], 4) << "windows always";
  EXPECT_EQ(blocks_by_mass({.top_p_1e4 = 4900}, heads, 10, 1, 2)[0], 3);
  EXPECT_EQ(blocks_by_mass({.top_p_1e4 = 7400}, heads, 60, 0, 0)[0], 2) << "of rows that could keep all";
}

// No other division of as many blocks, within the bounds, holds more: what is left out is no more than a level apart.
TEST(MassBudget, NoSwapOfBlocksBetweenHeadsHoldsMore) {
  std::mt19937 rng(5);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 50; ++round) {
    std::vector<HeadScores> heads(4);
    for (HeadScores& h : heads) {
      h.levels_per_score = kNats * (1 + static_cast<float>(rng() % 4));
      for (int b = 0; b < 120; ++b) h.scores.push_back(normal(rng));
    }
    const int32_t k = 8 + static_cast<int32_t>(rng() % 20);
    const auto counts = blocks_by_mass({.split = true}, heads, k, 0, 0);
    EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), 0), 4 * k);
    double least_in = 1, greatest_out = 0;
    for (size_t h = 0; h < heads.size(); ++h) {
      auto scores = heads[h].scores;
      std::sort(scores.rbegin(), scores.rend());
      double sum = 0;
      const auto mass = [&](float s) { return std::exp2(double{s - scores[0]} * heads[h].levels_per_score / 64); };
      for (const float s : scores) sum += mass(s);
      const auto n = static_cast<size_t>(counts[h]);
      EXPECT_TRUE(counts[h] >= (k + 3) / 4 && counts[h] <= 4 * k);
      if (counts[h] > (k + 3) / 4) least_in = std::min(least_in, mass(scores[n - 1]) / sum);
      if (counts[h] < 4 * k) greatest_out = std::max(greatest_out, mass(scores[n]) / sum);
    }
    EXPECT_GE(least_in, greatest_out * std::exp2(-3 / 64.0));
  }
}

}  // namespace
}  // namespace fovea::ref
