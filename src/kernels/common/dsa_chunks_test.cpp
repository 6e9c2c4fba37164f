#include "kernels/common/dsa_chunks.h"

#include <gtest/gtest.h>

namespace fovea {
namespace {

TEST(MqaLogits, AreChunkedByElementsFreeAndTotalMemory) {
  const int64_t large = int64_t{1} << 40;
  EXPECT_FALSE(should_chunk_mqa_logits(2000, 3999, 1, 1));               // 7,998,000: never
  EXPECT_TRUE(should_chunk_mqa_logits(2000, 4000, 1, large));            // 8,000,000: by memory
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

}  // namespace
}  // namespace fovea
