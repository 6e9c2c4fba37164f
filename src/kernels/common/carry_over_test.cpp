#include "kernels/common/carry_over.h"

#include "kernels/carry_over_cases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace fovea {
namespace {

using List = std::vector<int32_t>;

List carried(const List& from, int32_t blocks, int32_t k, int32_t local) {
  List to(k + 1, -9);
  to.resize(carry_list(from.data(), static_cast<int32_t>(from.size()), blocks, k, local, to.data()));
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

TEST(CarryOver, RowsReadTheirOwnOrTheOneAboveOrWhatWasKept) {
  for (uint32_t seed = 1; seed <= 50; ++seed) {
    testing::CarryOverProblem c(seed);
    const CarryOverParams& p = c.p;
    const List kept = c.kept;
    carry_over(p);
    for (int32_t row = 0; row < p.rows; ++row) {
      const int32_t from = c.from[row], own = std::min(c.k[row], c.blocks_of(row));
      for (int32_t group = 0; group < p.groups; ++group) {
        const auto at = [&](int32_t r) { return (int64_t{r} * p.groups + group) * p.capacity; };
        const auto place = [&](int32_t i) { return (int64_t{i} * p.groups + group) * p.kept_capacity; };
        const List mine(c.chosen.begin() + at(row), c.chosen.begin() + at(row) + own);
        List list = mine;
        if (from == CarryOverParams::kAbove) {
          const int32_t above = std::min(c.k[row - 1], c.blocks_of(row - 1));
          list.assign(c.chosen.begin() + at(row - 1), c.chosen.begin() + at(row - 1) + above);
        } else if (from >= 0) {
          list.assign(kept.begin() + place(from), kept.begin() + place(from) + c.from_count[row]);
        }
        List want = carried(list, c.blocks_of(row), c.k[row], p.local_blocks);
        want.resize(static_cast<size_t>(p.capacity), -9);
        ASSERT_EQ(List(c.units.begin() + at(row), c.units.begin() + at(row) + p.capacity), want) << seed << " row " << row;
        if (c.keep_at[row] < 0) continue;
        const auto there = c.kept.begin() + place(c.keep_at[row]);
        ASSERT_TRUE(std::equal(mine.begin(), mine.end(), there)) << seed << " row " << row;
      }
    }
    for (int32_t i = 0; i < testing::CarryOverProblem::kPlaces; i += 2) {
      const int64_t begin = int64_t{i} * p.groups * p.kept_capacity, end = begin + int64_t{p.groups} * p.kept_capacity;
      ASSERT_TRUE(std::equal(kept.begin() + begin, kept.begin() + end, c.kept.begin() + begin)) << "what was read stays";
    }
  }
}

}  // namespace
}  // namespace fovea
