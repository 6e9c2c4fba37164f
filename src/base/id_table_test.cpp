#include "base/id_table.h"

#include <fovea/types.h>

#include <gtest/gtest.h>

#include <set>

namespace fovea {
namespace {

TEST(IdTable, FindsTheOneUnderTheIdAndNoOther) {
  IdTable<SequenceId, std::unique_ptr<int>> table;
  EXPECT_EQ(table.find(SequenceId{3}), nullptr);
  table.insert(SequenceId{3}, std::make_unique<int>(30));
  ASSERT_NE(table.find(SequenceId{3}), nullptr);
  EXPECT_EQ(*table.find(SequenceId{3}), 30);
  EXPECT_EQ(table.find(SequenceId{2}), nullptr);
  EXPECT_EQ(table.find(SequenceId{4}), nullptr);
  EXPECT_EQ(table.find(SequenceId{3 + (uint64_t{1} << 32)}), nullptr);  // the index's next life
}

TEST(IdTable, TheNextLifeOfAnIndexDoesNotAnswerToTheLast) {
  IdTable<SequenceId, std::unique_ptr<int>> table;
  const SequenceId first{5}, second{5 + (uint64_t{1} << 32)};
  table.insert(first, std::make_unique<int>(1));
  EXPECT_EQ(*table.take(first), 1);
  EXPECT_EQ(table.find(first), nullptr);
  table.insert(second, std::make_unique<int>(2));
  EXPECT_EQ(table.find(first), nullptr);
  EXPECT_EQ(*table.find(second), 2);
}

TEST(IdTable, GoesThroughAllByIndex) {
  IdTable<SequenceId, std::unique_ptr<int>> table;
  for (int i : {7, 1, 4}) table.insert(SequenceId{static_cast<uint64_t>(i)}, std::make_unique<int>(i));
  table.take(SequenceId{4});
  std::vector<int> seen;
  table.for_each([&](int v) { seen.push_back(v); });
  EXPECT_EQ(seen, (std::vector<int>{1, 7}));
}

TEST(IdTable, EntriesStayWhereTheyAre) {
  IdTable<SequenceId, std::unique_ptr<int>> table;
  const int* first = &table.insert(SequenceId{1}, std::make_unique<int>(1));
  for (uint64_t i = 2; i < 200; ++i) table.insert(SequenceId{i}, std::make_unique<int>(0));
  EXPECT_EQ(table.find(SequenceId{1}), first);
}

TEST(IdPool, IndicesAreUsedAgainAndIdsNever) {
  IdPool<SequenceId> pool;
  std::set<uint64_t> given;
  for (int round = 0; round < 100; ++round) {
    const SequenceId a = pool.take(), b = pool.take();
    EXPECT_TRUE(given.insert(a.value).second);
    EXPECT_TRUE(given.insert(b.value).second);
    EXPECT_LE(static_cast<uint32_t>(a.value), 2u);
    EXPECT_LE(static_cast<uint32_t>(b.value), 2u);
    pool.give_back(a);
    pool.give_back(b);
  }
  EXPECT_EQ(given.count(0), 0u);
}

}  // namespace
}  // namespace fovea
