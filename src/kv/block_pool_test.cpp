#include "kv/block_pool.h"

#include <gtest/gtest.h>

namespace fovea {
namespace {

BlockId take(BlockPool& pool) { return pool.allocate()->block; }

TEST(BlockPool, GivesTheLowestBlocksFirstAndFreedOnesBeforeNewOnes) {
  BlockPool pool(4);
  EXPECT_EQ(take(pool), BlockId{0});
  EXPECT_EQ(take(pool), BlockId{1});
  pool.unref(BlockId{0}, /*keep=*/false);
  EXPECT_EQ(take(pool), BlockId{0});
  EXPECT_EQ(pool.high_water(), 2);  // memory of blocks 2 and 3 was never touched
  EXPECT_EQ(take(pool), BlockId{2});
  EXPECT_EQ(take(pool), BlockId{3});
  EXPECT_FALSE(pool.allocate().has_value());
  EXPECT_EQ(pool.num_used(), 4);
}

TEST(BlockPool, EvictsTheLeastRecentlyUsedCachedBlockLast) {
  BlockPool pool(3);
  for (int i = 0; i < 3; ++i) take(pool);
  pool.unref(BlockId{1}, true);
  pool.unref(BlockId{0}, true);
  pool.unref(BlockId{2}, false);
  EXPECT_EQ(pool.num_allocatable(), 3);
  EXPECT_EQ(pool.num_cached(), 2);

  const auto first = pool.allocate();
  EXPECT_EQ(first->block, BlockId{2});
  EXPECT_FALSE(first->evicted);
  pool.ref(BlockId{1});  // used again: no longer the oldest
  pool.unref(BlockId{1}, true);
  const auto second = pool.allocate();
  EXPECT_EQ(second->block, BlockId{0});
  EXPECT_TRUE(second->evicted);
  EXPECT_EQ(pool.allocate()->block, BlockId{1});
  EXPECT_FALSE(pool.allocate().has_value());
}

TEST(BlockPoolDeath, RefusesReferencesToFreeBlocks) {
  BlockPool pool(2);
  EXPECT_DEATH(pool.ref(BlockId{0}), "bug");
  EXPECT_DEATH(pool.unref(BlockId{1}, false), "bug");
}

}  // namespace
}  // namespace fovea
