#include "kernels/ref/dsa_chunks.h"

#include <gtest/gtest.h>

namespace fovea {
namespace {

using Ints = std::vector<int32_t>;

TEST(MqaLogits, AreChunkedByElementsFreeAndTotalMemory) {
  const int64_t large = int64_t{1} << 40;
  EXPECT_FALSE(should_chunk_mqa_logits(2000, 3999, 1, 1));      // 7,998,000: never
  EXPECT_TRUE(should_chunk_mqa_logits(2000, 4000, 1, large));   // 8,000,000: by memory
  EXPECT_FALSE(should_chunk_mqa_logits(2000, 4000, 64'000'000, large));  // twice the bytes are just free
  EXPECT_TRUE(should_chunk_mqa_logits(2000, 4000, 63'999'999, large));
  EXPECT_FALSE(should_chunk_mqa_logits(3000, 4000, large, 160'000'000));  // 48,000,000 is three tenths
  EXPECT_TRUE(should_chunk_mqa_logits(3000, 4000, large, 159'999'999));
}

TEST(MqaLogits, HalfOfTheFreeMemoryIsAChunkOfAtLeastOneRow) {
  EXPECT_EQ(mqa_logits_chunk_rows(1000, 80'000), 10);
  EXPECT_EQ(mqa_logits_chunk_rows(1000, 79'999), 9);
  EXPECT_EQ(mqa_logits_chunk_rows(1000, 0), 1);
}

TEST(IndexChunkPlan, CountsListsAndTableCopiesToo) {
  const IndexWork work{.rows = 4096, .keys = 30'000, .topk = 2047, .blocks = 2000, .lists = 2};
  const int64_t lists = 2 * int64_t{4096} * 2048 * 4;
  const IndexChunkPlan plan = plan_index_chunks(work, lists + 256'000'000, int64_t{1} << 40);
  EXPECT_EQ(plan.chunk_rows, 1000);  // 128,000,000 bytes of 32,000 elements a row
  EXPECT_EQ(plan.index_bytes, lists);
  EXPECT_EQ(plan.logits_bytes, 120'000'000);
  EXPECT_EQ(plan.table_bytes, 8'000'000);
  EXPECT_EQ(plan.total_bytes(), lists + 128'000'000);
  EXPECT_EQ(plan_index_chunks(work, int64_t{1} << 40, int64_t{1} << 40).chunk_rows, 4096);
  EXPECT_EQ(plan_index_chunks(work, 0, 1).chunk_rows, 1);
  EXPECT_EQ(plan_index_chunks({.rows = 10, .keys = 100, .topk = 5}, 0, 0).chunk_rows, 10);  // too small to cut
}

TEST(RaggedBounds, FollowTheExample) {
  const RaggedBounds b = ragged_bounds(Ints{3, 2}, Ints{10, 4});
  EXPECT_EQ(b.start, (Ints{0, 0, 0, 10, 10}));
  EXPECT_EQ(b.end, (Ints{8, 9, 10, 13, 14}));
  EXPECT_EQ(b.length, (Ints{8, 9, 10, 3, 4}));
  EXPECT_TRUE(ragged_bounds(Ints{}, Ints{}).start.empty());
  EXPECT_EQ(ragged_bounds(Ints{0, 1}, Ints{7, 1}).start, (Ints{7}));
}

TEST(PrefixChunks, FollowTheExample) {
  Ints table(4 * 64);
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(1000 - i);
  const PrefixChunks plan = plan_prefix_chunks(Ints{256, 512, 768, 1024}, table.data(), 64, 16, 1024);
  EXPECT_EQ(plan.chunk_len, 256);
  EXPECT_EQ(plan.count, 4);
  EXPECT_EQ(plan.lengths, (Ints{256, 256, 256, 256, 0, 256, 256, 256, 0, 0, 256, 256, 0, 0, 0, 256}));
  EXPECT_EQ(plan.starts, (Ints{0, 0, 0, 0, 256, 256, 256, 256, 512, 512, 512, 512, 768, 768, 768, 768}));
  EXPECT_EQ(plan.cu_lengths, (Ints{0, 256, 512, 768, 1024, 0, 0, 256, 512, 768, 0, 0, 0, 256, 512, 0, 0, 0, 0, 256}));
  ASSERT_EQ(plan.slots.size(), 4u);
  for (int32_t c = 0; c < 4; ++c) {
    ASSERT_EQ(static_cast<int32_t>(plan.slots[c].size()), plan.cu_lengths[c * 5 + 4]);
    for (int32_t i = 0; i < 4; ++i) {
      for (int32_t t = 0; t < plan.lengths[c * 4 + i]; ++t) {
        const int32_t token = plan.starts[c * 4 + i] + t;
        ASSERT_EQ(plan.slots[c][plan.cu_lengths[c * 5 + i] + t], table[i * 64 + token / 16] * 16 + token % 16);
      }
    }
  }
}

TEST(PrefixChunks, LastChunksArePartialAndNoPrefixMakesNone) {
  const Ints table = {5, 6, 7, 8};
  const PrefixChunks plan = plan_prefix_chunks(Ints{5, 0}, table.data(), 2, 4, 7);
  EXPECT_EQ(plan.chunk_len, 3);
  EXPECT_EQ(plan.lengths, (Ints{3, 0, 2, 0}));
  EXPECT_EQ(plan.slots, (std::vector<Ints>{{20, 21, 22}, {23, 24}}));
  EXPECT_EQ(plan_prefix_chunks(Ints{0, 0}, table.data(), 2, 4).count, 0);
  EXPECT_EQ(plan_prefix_chunks(Ints{}, table.data(), 2, 4).count, 0);
  EXPECT_EQ(plan_prefix_chunks(Ints{2, 1, 1}, table.data(), 1, 4, 2).chunk_len, 1);  // a batch above the capacity
  EXPECT_EQ(plan_prefix_chunks(Ints{1}, table.data(), 4, 4).chunk_len, 131072);
}

}  // namespace
}  // namespace fovea
