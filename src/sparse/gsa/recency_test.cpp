#include "sparse/gsa/recency.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <vector>

namespace fovea {
namespace {

using List = std::vector<int32_t>;

List choose(Recency& r, int32_t blocks, int32_t k, int32_t init = 0, int32_t local = 0) {
  List scratch(blocks), units(blocks, -9);
  units.resize(r.choose(blocks, k, init, local, scratch.data(), units.data()));
  return units;
}

TEST(Recency, WithoutAHistoryTheLastBlocksWin) {
  Recency r;
  EXPECT_EQ(choose(r, 10, 3), (List{7, 8, 9}));
}

TEST(Recency, AChoiceIsWorthHalfAPoint) {
  // 11 blocks: linspace is 0.1, 0.19, ... 1.0. The last three are chosen once, then have 0.5 more.
  Recency r;
  choose(r, 11, 3);
  EXPECT_EQ(choose(r, 11, 3), (List{8, 9, 10}));
  // A context that grew to 41 blocks: 8 to 10 have 1.0 and 0.28, 0.3025, 0.325 more; the last ones have up to 1.0.
  EXPECT_EQ(choose(r, 41, 4), (List{8, 9, 10, 40}));
  // 40 has 1.5 now, 8 to 10 have 1.78 and more, 39 has 0.9775.
  EXPECT_EQ(choose(r, 41, 5), (List{8, 9, 10, 39, 40}));
}

TEST(Recency, TiesGoToTheLowerIndex) {
  // 10 blocks, 0.1 apart. Block 0, chosen once by its window, has 0.6: so has block 5.
  Recency r;
  choose(r, 10, 1, 1, 0);
  EXPECT_EQ(choose(r, 10, 5), (List{0, 6, 7, 8, 9}));
}

TEST(Recency, WindowsCountInsideKAndInTheHistory) {
  Recency r;
  EXPECT_EQ(choose(r, 20, 4, 1, 2), (List{0, 17, 18, 19}));
  EXPECT_EQ(choose(r, 20, 2, 0, 0), (List{18, 19}));
  EXPECT_EQ(choose(r, 3, 4, 1, 2), (List{0, 1, 2}));
  EXPECT_EQ(choose(r, 1, 4, 1, 2), (List{0}));
}

// The formula as it is written, in floats, over a request that grows.
TEST(Recency, EqualsTheFormula) {
  Recency r;
  std::map<int32_t, int> history;
  for (int step = 0; step < 60; ++step) {
    const int32_t blocks = 30 + step / 7, k = 8;
    std::vector<double> score(blocks);
    for (int32_t b = 0; b < blocks; ++b) score[b] = 0.5 * history[b] + 0.1 + 0.9 * b / (blocks - 1);
    List order(blocks - 3);
    std::iota(order.begin(), order.end(), 1);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return score[a] > score[b] + 1e-9; });
    List want = {0, blocks - 2, blocks - 1};
    want.insert(want.end(), order.begin(), order.begin() + 5);
    std::sort(want.begin(), want.end());
    ASSERT_EQ(choose(r, blocks, k, 1, 2), want) << step;
    for (int32_t b : want) ++history[b];
  }
}

}  // namespace
}  // namespace fovea
