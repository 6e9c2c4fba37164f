#include "sparse/gsa_family/carry_over.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace fovea {
namespace {

using List = std::vector<int32_t>;

List carried(const List& from, int32_t blocks, int32_t k, int32_t local) {
  List to(k + 1, -9);
  to.resize(carry_over(from.data(), static_cast<int32_t>(from.size()), blocks, k, local, to.data()));
  return to;
}

TEST(CarryOver, WithoutANewBlockNothingChanges) {
  EXPECT_EQ(carried({0, 5, 18, 19}, 20, 4, 2), (List{0, 5, 18, 19}));
  EXPECT_EQ(carried({0, 1, 2}, 3, 4, 2), (List{0, 1, 2})) << "fewer blocks than k";
}

TEST(CarryOver, AnOpenedBlockTakesThePlaceOfTheOneThatLeftTheWindow) {
  EXPECT_EQ(carried({0, 5, 18, 19}, 21, 4, 2), (List{0, 5, 19, 20}));
  EXPECT_EQ(carried({0, 5, 18, 19}, 22, 4, 2), (List{0, 5, 20, 21}));
  EXPECT_EQ(carried({0, 5, 18, 19}, 30, 4, 2), (List{0, 5, 28, 29})) << "many were opened";
  EXPECT_EQ(carried({0, 5, 19}, 21, 3, 1), (List{0, 5, 20}));
}

TEST(CarryOver, WhatKGainsIsTheLatest) {
  EXPECT_EQ(carried({0, 5, 18, 19}, 21, 5, 2), (List{0, 5, 18, 19, 20})) << "the one that left stays";
  EXPECT_EQ(carried({0, 5, 18, 19}, 20, 6, 2), (List{0, 5, 16, 17, 18, 19}));
  EXPECT_EQ(carried({0, 1, 2}, 4, 4, 2), (List{0, 1, 2, 3}));
  EXPECT_EQ(carried({}, 5, 3, 1), (List{2, 3, 4}));
}

TEST(CarryOver, AlwaysKAscendingBlocksWithTheWindow) {
  std::mt19937 rng(1);
  for (int i = 0; i < 5000; ++i) {
    const int32_t before = 1 + rng() % 30, blocks = before + rng() % 4, k = 1 + rng() % 34, local = rng() % 4;
    List from(before);
    for (int32_t b = 0; b < before; ++b) from[b] = b;
    std::shuffle(from.begin(), from.end(), rng);
    from.resize(rng() % (before + 1));
    std::sort(from.begin(), from.end());
    const List to = carried(from, blocks, k, local);
    ASSERT_EQ(static_cast<int32_t>(to.size()), std::min(k, blocks));
    for (size_t j = 0; j < to.size(); ++j) ASSERT_TRUE(to[j] < blocks && (j == 0 ? to[j] >= 0 : to[j] > to[j - 1]));
    for (int32_t b = blocks - std::min({local, k, blocks}); b < blocks; ++b)
      ASSERT_TRUE(std::binary_search(to.begin(), to.end(), b));
  }
}

}  // namespace
}  // namespace fovea
