#include "kernels/ref/nsa.h"

#include <gtest/gtest.h>

#include <vector>

namespace fovea {
namespace {

TEST(NsaBlockScores, WeighFiveItemsAndSumTheGroup) {
  // Two KV heads of two query heads, 7 items, blocks 0 and 1: items -1..3 and 3..7, of which -1 and 7 do not exist.
  std::vector<float> p;
  for (int i = 0; i < 28; ++i) p.push_back(static_cast<float>(i));
  std::vector<float> out(4);
  ref::nsa_block_scores(p.data(), 2, 2, 7, 2, out.data());
  const auto block0 = [&](int h) { return 2 * p[7 * h] + 2 * p[7 * h + 1] + 2 * p[7 * h + 2] + p[7 * h + 3]; };
  const auto block1 = [&](int h) { return p[7 * h + 3] + 2 * p[7 * h + 4] + 2 * p[7 * h + 5] + 2 * p[7 * h + 6]; };
  EXPECT_EQ(out, (std::vector<float>{block0(0) + block0(1), block1(0) + block1(1), block0(2) + block0(3), block1(2) + block1(3)}));
}

TEST(NsaBlockScores, AMassOfOneCountsEightTimesAtMost) {
  const std::vector<float> even(9, 1.0f);
  std::vector<float> out(2);
  ref::nsa_block_scores(even.data(), 1, 1, 9, 2, out.data());
  EXPECT_EQ(out, (std::vector<float>{7, 8}));
}

}  // namespace
}  // namespace fovea
