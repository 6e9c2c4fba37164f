#include "kv/block_manager.h"

#include <gtest/gtest.h>

#include <numeric>

namespace fovea {
namespace {

constexpr SequenceId kA{1}, kB{2}, kC{3}, kD{4};

class BlockManagerTest : public ::testing::Test {
 protected:
  static constexpr int32_t kBlocks = 8;

  void TearDown() override { expect_consistent(); }

  void expect_consistent() {
    const Status s = blocks_.check_consistency();
    EXPECT_TRUE(s.ok()) << s.message();
  }

  static KeyContext context() {
    KeyContext c;
    c.block_size = 8;
    return c;
  }

  static std::vector<int32_t> text(int32_t n, int32_t first = 0) {
    std::vector<int32_t> tokens(static_cast<size_t>(n));
    std::iota(tokens.begin(), tokens.end(), first);
    return tokens;
  }

  // A sequence whose n tokens were prefilled and published.
  void prefill(SequenceId seq, const std::vector<int32_t>& tokens) {
    blocks_.create_sequence(seq, &hasher_);
    ASSERT_TRUE(blocks_.append_slots(seq, static_cast<int64_t>(tokens.size()), &ops_).ok());
    blocks_.publish(seq, tokens, static_cast<int64_t>(tokens.size()));
  }

  // Blocks; ~slot in the swap area.
  std::vector<int32_t> row(SequenceId seq) const {
    std::vector<int32_t> row;
    for (const BlockPlace& p : blocks_.table(seq).places()) row.push_back(p.is_in_pool() ? p.block().value : ~p.slot().value);
    return row;
  }

  BlockHasher hasher_{context()};
  BlockManager blocks_{{kBlocks, 8, 3}};
  std::vector<CacheOp> ops_;
};

TEST_F(BlockManagerTest, AppendsAcrossBlockBoundaries) {
  blocks_.create_sequence(kA, nullptr);
  for (int64_t n : {1, 6, 1, 1, 16}) ASSERT_TRUE(blocks_.append_slots(kA, n, &ops_).ok());
  EXPECT_EQ(blocks_.num_tokens(kA), 25);
  EXPECT_EQ(row(kA), (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(blocks_.slot_of(kA, 0), 0);
  EXPECT_EQ(blocks_.slot_of(kA, 24), 24);
  EXPECT_EQ(blocks_.max_append(kA), 64 - 25);
  EXPECT_TRUE(ops_.empty());
  EXPECT_EQ(blocks_.usage().wasted_slots(), 7);
}

TEST_F(BlockManagerTest, AppendIsAllOrNothing) {
  prefill(kA, text(40));
  blocks_.create_sequence(kB, nullptr);
  const Status s = blocks_.append_slots(kB, 25, &ops_);
  EXPECT_EQ(s.code(), StatusCode::resource_exhausted);
  EXPECT_NE(s.message().find("needs 4 more KV blocks, 3 are free"), std::string::npos) << s.message();
  EXPECT_EQ(blocks_.num_tokens(kB), 0);
  EXPECT_EQ(blocks_.num_free(), 3);
  EXPECT_TRUE(blocks_.append_slots(kB, 24, &ops_).ok());
  EXPECT_EQ(blocks_.num_free(), 0);
}

TEST_F(BlockManagerTest, AHitTakesFullBlocks) {
  for (const auto& [n, hit] : {std::pair{7, 0}, {8, 8}, {9, 8}, {15, 8}, {16, 16}, {17, 16}, {20, 16}, {1, 0}}) {
    prefill(kA, text(20));  // two full blocks
    blocks_.create_sequence(kB, &hasher_);
    EXPECT_EQ(blocks_.match_prefix(kB, text(n)), hit) << n;
    EXPECT_EQ(blocks_.num_tokens(kB), hit);
    blocks_.free(kA);
    blocks_.free(kB);
    expect_consistent();
  }
  EXPECT_EQ(blocks_.num_cached(), 2);
}

// Tiles of two blocks: three cached blocks hold one tile, and what a shorter hit gave up is still cached.
TEST_F(BlockManagerTest, AHitIsCutAtTheAlignment) {
  for (const auto& [n, hit] : {std::pair{60, 16}, {24, 16}, {16, 16}, {15, 0}}) {
    prefill(kA, text(24));
    blocks_.create_sequence(kB, &hasher_);
    EXPECT_EQ(blocks_.match_prefix(kB, text(n), 16), hit) << n;
    EXPECT_EQ(blocks_.table(kB).size(), hit / 8);
    blocks_.free(kA);
    blocks_.free(kB);
    expect_consistent();
  }
  EXPECT_EQ(blocks_.num_cached(), 3);
}

TEST_F(BlockManagerTest, AHitNeedsTheWholeChainAndTheSameContext) {
  prefill(kA, text(24));
  auto changed = text(30);
  changed[3] = 99;  // the later blocks' tokens are equal, their history is not
  blocks_.create_sequence(kB, &hasher_);
  EXPECT_EQ(blocks_.match_prefix(kB, changed), 0);
  changed = text(30);
  changed[20] = 99;
  blocks_.create_sequence(kC, &hasher_);
  EXPECT_EQ(blocks_.match_prefix(kC, changed), 16);
  KeyContext other = context();
  other.tenant_salt = "someone else";
  BlockHasher stranger(other);
  blocks_.create_sequence(kD, &stranger);
  EXPECT_EQ(blocks_.match_prefix(kD, text(30)), 0);
}

TEST_F(BlockManagerTest, OnlyPrefilledFullBlocksArePublished) {
  blocks_.create_sequence(kA, &hasher_);
  const auto tokens = text(40);
  ASSERT_TRUE(blocks_.append_slots(kA, 30, &ops_).ok());
  blocks_.publish(kA, tokens, 20);  // tokens 20 to 29 were decoded
  blocks_.publish(kA, tokens, 20);
  blocks_.create_sequence(kB, &hasher_);
  EXPECT_EQ(blocks_.match_prefix(kB, tokens), 16);
}

TEST_F(BlockManagerTest, TheFirstOfTwoEqualBlocksStaysPublished) {
  prefill(kA, text(16));
  prefill(kB, text(16));  // both were computed at the same time
  const auto a = row(kA);
  blocks_.create_sequence(kC, &hasher_);
  EXPECT_EQ(blocks_.match_prefix(kC, text(17)), 16);
  EXPECT_EQ(row(kC), a);
  blocks_.free(kB);
  EXPECT_EQ(blocks_.num_cached(), 0);  // its blocks are free, not cached
  EXPECT_EQ(blocks_.num_free(), kBlocks - 2);
}

// Whoever has all of it takes the partial block, in any continuation; nobody takes a part of it.
TEST_F(BlockManagerTest, APublishedTailIsFoundBehindTheFullBlocks) {
  for (int32_t tail : {1, 4, 7}) {
    const auto held = text(16 + tail, 100 * tail);
    prefill(kA, held);
    blocks_.publish(kA, held, 16 + tail, /*tail=*/true);
    blocks_.publish(kA, held, 16 + tail, /*tail=*/true);
    for (const auto& [n, hit] :
         {std::pair{16 + tail - 1, 16}, {16 + tail, 16 + tail}, {16 + tail + 1, 16 + tail}, {60, 16 + tail}}) {
      blocks_.create_sequence(kB, &hasher_);
      EXPECT_EQ(blocks_.match_prefix(kB, text(n, 100 * tail)), hit) << tail << " " << n;
      EXPECT_EQ(blocks_.num_tokens(kB), hit);
      blocks_.free(kB);
      expect_consistent();
    }
    blocks_.create_sequence(kB, &hasher_);
    EXPECT_EQ(blocks_.match_prefix(kB, held, 8), 16) << "tiles are taken whole";
    blocks_.free(kB);
    blocks_.free(kA);
    EXPECT_EQ(blocks_.num_free(), kBlocks);
  }
}

TEST_F(BlockManagerTest, ATailOfASequenceShorterThanABlock) {
  prefill(kA, text(3));
  blocks_.publish(kA, text(3), 3, true);
  blocks_.create_sequence(kB, &hasher_);
  EXPECT_EQ(blocks_.match_prefix(kB, text(20)), 3);
  EXPECT_EQ(row(kB), row(kA));
}

// Found by others, its block is copied by whoever writes on, its owner included; its only owner withdraws the key.
TEST_F(BlockManagerTest, ATailKeepsTheBytesOfItsTokens) {
  const auto held = text(12);
  prefill(kA, held);
  blocks_.publish(kA, held, 12, true);
  blocks_.create_sequence(kB, &hasher_);
  ASSERT_EQ(blocks_.match_prefix(kB, text(20)), 12);
  EXPECT_EQ(blocks_.blocks_needed(kA, 1), 1);  // the copy
  ASSERT_TRUE(blocks_.append_slots(kA, 1, &ops_).ok());
  EXPECT_EQ(ops_, (std::vector<CacheOp>{CacheOp::copy(BlockId{1}, BlockId{2})}));
  blocks_.free(kA);
  blocks_.create_sequence(kC, &hasher_);
  EXPECT_EQ(blocks_.match_prefix(kC, held), 12);
  EXPECT_EQ(row(kC), row(kB));
  blocks_.free(kC);

  ops_.clear();
  ASSERT_TRUE(blocks_.append_slots(kB, 8, &ops_).ok());  // alone now
  EXPECT_TRUE(ops_.empty());
  blocks_.create_sequence(kD, &hasher_);
  EXPECT_EQ(blocks_.match_prefix(kD, held), 8);
  blocks_.publish(kB, text(20), 20, true);  // full, under its full key, and a new tail
  blocks_.free(kD);
  blocks_.create_sequence(kD, &hasher_);
  EXPECT_EQ(blocks_.match_prefix(kD, text(20)), 20);
}

TEST_F(BlockManagerTest, EvictionForgetsTheTailOfAChainFirst) {
  prefill(kA, text(32));
  blocks_.free(kA);
  prefill(kB, text(40, 1000));  // 4 blocks were never used, so one is evicted
  blocks_.create_sequence(kC, &hasher_);
  EXPECT_EQ(blocks_.match_prefix(kC, text(33)), 24);
}

TEST_F(BlockManagerTest, AForkSharesThePartialBlockUntilItIsWritten) {
  prefill(kA, text(20));
  blocks_.fork(kA, kB);
  EXPECT_EQ(row(kB), row(kA));
  EXPECT_EQ(blocks_.num_free(), kBlocks - 3);
  EXPECT_EQ(blocks_.blocks_needed(kB, 1), 1);  // the copy
  EXPECT_EQ(blocks_.blocks_needed(kB, 5), 2);
  ASSERT_TRUE(blocks_.append_slots(kB, 1, &ops_).ok());
  EXPECT_EQ(ops_, (std::vector<CacheOp>{CacheOp::copy(BlockId{2}, BlockId{3})}));
  EXPECT_EQ(row(kB), (std::vector<int32_t>{0, 1, 3}));
  EXPECT_EQ(blocks_.usage().wasted_slots(), 4 + 3);
  // kA has block 2 for itself again: no copy.
  ASSERT_TRUE(blocks_.append_slots(kA, 1, &ops_).ok());
  EXPECT_EQ(ops_.size(), 1u);
}

TEST_F(BlockManagerTest, AForkInTheMiddleCutsThere) {
  prefill(kA, text(30));
  for (int64_t at : {1, 7, 8, 9, 16, 29}) {
    blocks_.fork(kA, kB, at);
    EXPECT_EQ(blocks_.num_tokens(kB), at);
    EXPECT_EQ(blocks_.table(kB).size(), (at + 7) / 8);
    ops_.clear();
    ASSERT_TRUE(blocks_.append_slots(kB, 1, &ops_).ok());
    EXPECT_EQ(ops_.size(), at % 8 == 0 ? 0u : 1u) << at;
    expect_consistent();
    blocks_.free(kB);
  }
}

TEST_F(BlockManagerTest, WritingIntoAPublishedBlockTakesItOutOfTheIndex) {
  const auto tokens = text(16);
  prefill(kA, tokens);
  blocks_.fork(kA, kB, 12);
  blocks_.free(kA);  // now only kB refers to block 1, which is full and published
  ASSERT_TRUE(blocks_.append_slots(kB, 1, &ops_).ok());
  EXPECT_TRUE(ops_.empty());
  blocks_.create_sequence(kC, &hasher_);
  EXPECT_EQ(blocks_.match_prefix(kC, text(17)), 8);
}

TEST_F(BlockManagerTest, AForkGoesOnWithTheKeyChain) {
  const auto tokens = text(40);
  prefill(kA, text(24));
  for (int64_t at : {24, 20, 16, 5}) {
    blocks_.fork(kA, kB, at);
    ASSERT_TRUE(blocks_.append_slots(kB, 32 - at, &ops_).ok());
    blocks_.publish(kB, tokens, 32);
    blocks_.create_sequence(kC, &hasher_);
    EXPECT_EQ(blocks_.match_prefix(kC, tokens), 32) << at;
    expect_consistent();
    blocks_.free(kC);
    blocks_.free(kB);
  }
}

TEST_F(BlockManagerTest, SwapsOutOnlyWhatNobodyElseUses) {
  prefill(kA, text(20));
  blocks_.fork(kA, kB);
  ASSERT_TRUE(blocks_.append_slots(kB, 6, &ops_).ok());  // a copy and one new block
  ops_.clear();
  ASSERT_TRUE(blocks_.swap_out(kB, &ops_).ok());
  EXPECT_EQ(ops_, (std::vector<CacheOp>{CacheOp::swap_out(BlockId{3}, SwapSlot{0}), CacheOp::swap_out(BlockId{4}, SwapSlot{1})}));
  EXPECT_EQ(row(kB), (std::vector<int32_t>{0, 1, ~0, ~1}));
  EXPECT_EQ(blocks_.num_free(), kBlocks - 3);
  expect_consistent();

  // The document is released: what kB still shares can go now, as far as there is room.
  blocks_.free(kA);
  ops_.clear();
  EXPECT_EQ(blocks_.swap_out_leftovers(&ops_), 1);
  EXPECT_EQ(row(kB), (std::vector<int32_t>{~2, 1, ~0, ~1}));
  expect_consistent();

  EXPECT_EQ(blocks_.swap_in_blocks(kB, 0), 3);
  EXPECT_EQ(blocks_.swap_in_blocks(kB, 7), 4);
  ASSERT_TRUE(blocks_.swap_in(kB, &ops_).ok());
  EXPECT_EQ(blocks_.num_swap_free(), 3);
  EXPECT_FALSE(blocks_.is_swapped(kB));
}

TEST_F(BlockManagerTest, SwappedForksShareTheirColumnsInTheSwapAreaToo) {
  prefill(kA, text(16));
  blocks_.fork(kA, kB);
  ASSERT_TRUE(blocks_.append_slots(kB, 1, &ops_).ok());
  ASSERT_TRUE(blocks_.swap_out(kA, &ops_).ok());  // all of it is shared: nothing moves
  EXPECT_EQ(blocks_.num_swap_free(), 3);
  ASSERT_TRUE(blocks_.swap_out(kB, &ops_).ok());  // now nobody is left
  EXPECT_EQ(blocks_.num_swap_free(), 0);
  EXPECT_EQ(blocks_.num_free(), kBlocks);
  EXPECT_EQ(row(kA), (std::vector<int32_t>{~0, ~1}));
  expect_consistent();
  ASSERT_TRUE(blocks_.swap_in(kA, &ops_).ok());
  EXPECT_EQ(blocks_.swap_in_blocks(kB, 0), 1);
  expect_consistent();
  blocks_.free(kB);
  EXPECT_EQ(blocks_.num_swap_free(), 3);
}

TEST_F(BlockManagerTest, SwapNeedsMemoryForItsSlots) {
  bool full = true;
  BlockManager blocks({.num_blocks = 8, .block_size = 4, .swap_slots = 4, .reserve_swap = [&](SwapSlot slot) {
                         return full && slot.value > 0 ? Status::resource_exhausted("the device is full") : Status();
                       }});
  for (SequenceId seq : {kA, kB}) {
    blocks.create_sequence(seq, nullptr);
    ASSERT_TRUE(blocks.append_slots(seq, seq == kA ? 8 : 4, &ops_).ok());
  }
  const Status s = blocks.swap_out(kA, &ops_);
  EXPECT_NE(s.message().find("the device is full"), std::string::npos) << s.message();
  EXPECT_FALSE(blocks.is_swapped(kA));
  EXPECT_TRUE(ops_.empty());
  EXPECT_TRUE(blocks.swap_out(kB, &ops_).ok()) << "the first slot has its memory";
  full = false;
  EXPECT_TRUE(blocks.swap_out(kA, &ops_).ok());
  EXPECT_EQ(ops_.size(), 3u);
  EXPECT_TRUE(blocks.check_consistency().ok());
}

TEST_F(BlockManagerTest, SwapNeedsRoomOnBothSides) {
  prefill(kA, text(32));
  Status s = blocks_.swap_out(kA, &ops_);
  EXPECT_EQ(s.code(), StatusCode::resource_exhausted);
  EXPECT_NE(s.message().find("needs 4 blocks of swap space, 3 are free"), std::string::npos) << s.message();
  EXPECT_FALSE(blocks_.is_swapped(kA));
  EXPECT_TRUE(ops_.empty());
  blocks_.free(kA);

  prefill(kB, text(20, 500));
  ASSERT_TRUE(blocks_.swap_out(kB, &ops_).ok());
  prefill(kC, text(48, 900));
  s = blocks_.swap_in(kB, &ops_);
  EXPECT_EQ(s.code(), StatusCode::resource_exhausted);
  EXPECT_TRUE(blocks_.is_swapped(kB));
  blocks_.free(kB);  // aborted while swapped
  EXPECT_EQ(blocks_.num_swap_free(), 3);
}

TEST_F(BlockManagerTest, ARenamedSequenceKeepsEverything) {
  prefill(kA, text(20));
  const auto before = row(kA);
  blocks_.rename(kA, kB);
  EXPECT_FALSE(blocks_.contains(kA));
  EXPECT_EQ(row(kB), before);
  ASSERT_TRUE(blocks_.swap_out(kB, &ops_).ok());
  blocks_.rename(kB, kC);
  ASSERT_TRUE(blocks_.swap_in(kC, &ops_).ok());
}

}  // namespace
}  // namespace fovea
