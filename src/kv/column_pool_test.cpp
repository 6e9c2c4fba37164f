#include "kv/column_pool.h"

#include <gtest/gtest.h>

namespace fovea {
namespace {

Located in_store(uint32_t n) { return {.slab = n, .at = 0, .parts = 1, .tokens = 16}; }
StoreKey some_key() { return StoreKey{}; }

std::vector<CacheOp> taken(ColumnPool& pool, int32_t block) {
  std::vector<CacheOp> ops;
  pool.take(BlockId{block}, &ops);
  return ops;
}

TEST(ColumnPool, ANewPoolGivesEveryColumnAndThenNone) {
  ColumnPool pool(10, 4, 1);
  for (int32_t b = 0; b < 4; ++b) {
    EXPECT_EQ(pool.available(), 4 - b);
    EXPECT_EQ(taken(pool, b), std::vector{CacheOp::take(BlockId{b}, SlotId{b})});
  }
  EXPECT_EQ(pool.available(), 0) << "nothing is stored";
}

TEST(ColumnPool, StoredBlocksAreGivenUpFirstStoredFirstDownToTheReserve) {
  ColumnPool pool(10, 4, 1);
  for (int32_t b = 0; b < 4; ++b) taken(pool, b);
  pool.set_stored(BlockId{2}, some_key(), in_store(2));
  EXPECT_EQ(pool.available(), 0) << "one column stays free of pins";
  pool.set_stored(BlockId{0}, some_key(), in_store(0));
  EXPECT_EQ(pool.available(), 1);
  EXPECT_EQ(taken(pool, 7),
            (std::vector{CacheOp::unpin(SlotId{2}), CacheOp::unpin(SlotId{0}), CacheOp::take(BlockId{7}, SlotId{0})}));
  EXPECT_EQ(pool.column_of(BlockId{2}), ColumnPool::kMobile);
  EXPECT_EQ(pool.num_mobile(), 2);
  EXPECT_EQ(pool.available(), 0);
}

TEST(ColumnPool, AReleasedBlockIsForgottenBeforeItsColumnIsUsedAgain) {
  ColumnPool pool(10, 2, 0);
  taken(pool, 0), taken(pool, 1);
  pool.release(BlockId{0});
  EXPECT_EQ(pool.available(), 1);
  EXPECT_EQ(taken(pool, 5), (std::vector{CacheOp::forget(BlockId{0}), CacheOp::take(BlockId{5}, SlotId{0})}));
  pool.release(BlockId{1});
  std::vector<CacheOp> ops;
  pool.begin_step(&ops);
  EXPECT_EQ(ops, std::vector{CacheOp::forget(BlockId{1})});
}

TEST(ColumnPool, WhatIsWrittenOnAgainIsReadBackAndNoMoreTheStores) {
  ColumnPool pool(10, 3, 1);
  for (int32_t b = 0; b < 3; ++b) {
    taken(pool, b);
    pool.set_stored(BlockId{b}, some_key(), in_store(static_cast<uint32_t>(b)));
  }
  taken(pool, 4);
  ASSERT_EQ(pool.column_of(BlockId{0}), ColumnPool::kMobile);
  std::vector<CacheOp> ops;
  const SlotId column = pool.take_back(BlockId{0}, &ops);
  EXPECT_EQ(pool.column_of(BlockId{0}), column);
  EXPECT_TRUE(pool.is_private(BlockId{0}));
  EXPECT_TRUE(pool.homes().located[0].found()) << "its content is read back in this step";
  EXPECT_TRUE(pool.take_unneeded().empty());
  ops.clear();
  pool.begin_step(&ops);
  const std::vector<Located> unneeded = pool.take_unneeded();
  ASSERT_EQ(unneeded.size(), 1u);
  EXPECT_EQ(unneeded[0].slab, 0u);
  EXPECT_TRUE(pool.take_unneeded().empty());
}

TEST(ColumnPool, AFreedMobileBlockGivesItsPinBack) {
  ColumnPool pool(10, 2, 0);
  taken(pool, 0), taken(pool, 1);
  pool.set_stored(BlockId{0}, some_key(), in_store(9));
  taken(pool, 2);
  pool.release(BlockId{0});
  EXPECT_EQ(pool.num_mobile(), 0);
  EXPECT_TRUE(pool.take_unneeded().empty()) << "an operation of this step may copy it";
  std::vector<CacheOp> ops;
  pool.begin_step(&ops);
  EXPECT_EQ(pool.take_unneeded().size(), 1u);
}

}  // namespace
}  // namespace fovea
