#include "runner/cache_plan.h"

#include "kv/extent_cache.h"
#include "kv/extent_windows.h"

#include <gtest/gtest.h>

namespace fovea {
namespace {

// As tiny-gqa: 12 extents of 4 KiB a block, codes of 3 KiB.
CachePlanInputs inputs(int64_t bytes) {
  CachePlanInputs in;
  in.cache.num_layers = 6;
  in.cache.kv_heads = 2;
  in.cache.head_dim = 64;
  in.cache.extra_planes = {{"codes", 2, 256, Residency::resident}};
  in.bytes = bytes;
  in.max_model_len = 8192;
  in.kv_tokens = 8192;
  in.max_num_seqs = 64;
  in.max_num_batched_tokens = 512;
  in.row_blocks = 8;
  in.tier = true;
  return in;
}

// Of a block.
int64_t resident(int32_t seqs) { return 6 * 2 * 256 + ExtentCache::bytes_per_block(6, 2, kTablesPerSequence * seqs); }

constexpr int64_t kColumn = 12 * 4096, kStrip = 512 * 4096;
const int64_t kResident = 512 * resident(1), kColumnTables = ExtentCache::bytes_per_column(6, 2);
constexpr int64_t kStaging = 43;  // columns for a strip of 512 extents, 12 to a column

TEST(CachePlan, AutomaticDividesOnlyWhereAContextDoesNotFitAndSomethingLiesBelow) {
  EXPECT_FALSE(plan_cache(inputs(int64_t{64} << 20))->own_columns);
  const CachePlan small = *plan_cache(inputs(kResident + 128 * kColumn));
  EXPECT_TRUE(small.own_columns);
  EXPECT_EQ(small.num_blocks, 512);
  CachePlanInputs in = inputs(kResident + 128 * kColumn);
  in.tier = false;
  EXPECT_FALSE(plan_cache(in)->own_columns);
  in.tier = true;
  in.unfit = "a method";
  EXPECT_FALSE(plan_cache(in)->own_columns);
  EXPECT_EQ(plan_cache(in)->note, "--kv-offload auto is off: a method");
  EXPECT_NE(plan_cache(inputs(kResident + 20 * kColumn))->note.find("three quarters"), std::string::npos);
  in.offload = OffloadChoice::on;
  EXPECT_NE(plan_cache(in).status().message().find("a method"), std::string::npos);
  in.unfit = "", in.tier = false;
  EXPECT_NE(plan_cache(in).status().message().find("--kv-host-memory"), std::string::npos);
  in.offload = OffloadChoice::off, in.tier = true;
  EXPECT_FALSE(plan_cache(in)->own_columns);
}

TEST(CachePlan, TheSmallestPoolIsOneSequenceAndAChunkOfOneBlock) {
  CachePlanInputs in = inputs(0);
  in.row_blocks = 20;
  const int64_t least = kResident + (kStaging + 23) * (kColumn + kColumnTables);
  in.bytes = least;
  const CachePlan plan = *plan_cache(in);
  EXPECT_EQ(plan.num_columns, 23);
  EXPECT_EQ(plan.reserve_columns, 20);
  EXPECT_EQ(plan.staging_columns, kStaging);
  EXPECT_EQ(plan.max_num_seqs, 1);
  EXPECT_EQ(plan.max_num_batched_tokens, 32);
  in.bytes = least - 1;
  in.offload = OffloadChoice::on;
  const Status why = plan_cache(in).status();
  EXPECT_EQ(why.code(), StatusCode::resource_exhausted);
  EXPECT_NE(why.message().find("23 are needed"), std::string::npos) << why.message();
  in.bytes = kResident + kStrip * 4 / 3 - 4;
  EXPECT_NE(plan_cache(in).status().message().find("three quarters"), std::string::npos);
}

TEST(CachePlan, WhatIsReadInPlaceNeedsNoStaging) {
  CachePlanInputs in = inputs(kResident + 23 * (kColumn + kColumnTables));
  in.row_blocks = 20, in.tier_in_place = true;
  const CachePlan plan = *plan_cache(in);
  EXPECT_EQ(plan.num_columns, 23);
  EXPECT_EQ(plan.staging_columns, 0);
  CachePlanInputs longest = in, staged = in;
  longest.max_model_len = staged.max_model_len = 131072, longest.kv_tokens = staged.kv_tokens = 0;
  staged.tier_in_place = false;
  EXPECT_GT(plan_cache(longest)->num_blocks, plan_cache(staged)->num_blocks);
  in.bytes = kResident + 23 * (kColumn + kColumnTables) - 1, in.offload = OffloadChoice::on;
  EXPECT_NE(plan_cache(in).status().message().find("23 are needed"), std::string::npos);
}

TEST(CachePlan, WhatAStepTakesGrowsWithThePool) {
  CachePlanInputs in = inputs(512 * resident(4) + (kStaging + 24) * (kColumn + kColumnTables));
  const CachePlan small = *plan_cache(in);
  EXPECT_EQ(small.num_columns, 24);
  EXPECT_EQ(small.max_num_seqs, 4);
  EXPECT_EQ(small.max_num_batched_tokens, 192);
  EXPECT_LE(small.max_num_batched_tokens / 16 + small.reserve_columns + small.max_num_seqs, small.num_columns);
  in.bytes = kResident + 800 * kColumn;
  in.offload = OffloadChoice::on;
  const CachePlan large = *plan_cache(in);
  EXPECT_EQ(large.max_num_batched_tokens, 512);
  EXPECT_EQ(large.staging_columns, 4 * kStaging - 1) << "both heads twice, in whole columns";
}

// Without --kv-tokens the longest context is what the pool serves, however long the model's may be; but half of it is columns, as
// long as whole chunks and four rows could use them.
TEST(CachePlan, ContextsAreAsLongAsThePoolServes) {
  for (const int64_t bytes : {int64_t{2} << 20, int64_t{5} << 20, int64_t{40} << 20}) {
    CachePlanInputs in = inputs(bytes);
    in.max_model_len = 131072, in.kv_tokens = 0, in.reads_ahead = true;
    const CachePlan plan = *plan_cache(in);
    ASSERT_TRUE(plan.own_columns) << plan.note;
    EXPECT_GT(plan.num_blocks, 2 * bytes / (kColumn + 6 * 2 * 256)) << bytes;
    const int64_t one_head = (plan.num_blocks + 11) / 12, wider = plan.staging_columns - one_head;
    EXPECT_GE(wider, 0) << bytes;
    EXPECT_GE(plan.num_columns + wider, std::min<int64_t>(4 * 8 + 2 * 32 + 3, bytes * 32 / 33 / 2 / kColumn)) << bytes;
    EXPECT_EQ(plan.read_ahead, bytes / 33 / 4096);
    const int64_t beside = plan.num_blocks * resident(plan.max_num_seqs);
    EXPECT_LE(plan.pool_columns() * (kColumn + kColumnTables) + beside + plan.read_ahead * 4096, bytes);
    EXPECT_LE(plan.staging_columns * kColumn, (bytes - beside) / 4 * 3 + kColumn);
  }
  CachePlanInputs in = inputs(10 * kColumn);
  in.max_model_len = 131072, in.kv_tokens = 0;
  EXPECT_FALSE(plan_cache(in)->own_columns) << "it holds as much as it would serve";
}

// Staging takes what whole chunks and eight sequences leave, and two strips of all heads at most.
TEST(CachePlan, StagingIsAsWideAsChunksAllow) {
  for (const int64_t spare : {0, 10, 1000}) {
    CachePlanInputs in = inputs(512 * resident(8) + (kStaging + 75 + spare) * (kColumn + kColumnTables));
    in.max_num_seqs = 8, in.offload = OffloadChoice::on;
    const CachePlan plan = *plan_cache(in);
    EXPECT_EQ(plan.max_num_batched_tokens, 512) << spare;
    EXPECT_EQ(plan.max_num_seqs, 8) << spare;
    EXPECT_EQ(plan.staging_columns, std::min(kStaging + 75 + spare - plan.reserve_columns - 40, 4 * kStaging - 1)) << spare;
  }
}

// Of a device. Without a store below host memory it must hold all, and says how long contexts may be where nobody else does; with
// one it only has to let K and V through.
TEST(CachePlan, HostMemoryMayBeSmallerThanContextsAboveAStore) {
  CachePlanInputs in = inputs(int64_t{12} << 20);
  in.offload = OffloadChoice::on, in.host_bytes = 512 * kColumn;
  EXPECT_EQ(plan_cache(in)->window_extents, 0);
  in.store_below_host = true;
  EXPECT_EQ(plan_cache(in)->window_extents, 0);
  in.host_bytes -= 1;
  const int32_t window = plan_cache(in)->window_extents;
  EXPECT_EQ(window, in.host_bytes / 16 / 4096);
  EXPECT_LE(ExtentWindows::bytes(window, 4096, 2), in.host_bytes);
  const int64_t least = ExtentWindows::least_bytes(4096, 2);
  in.host_bytes = least;
  EXPECT_EQ(plan_cache(in)->window_extents, 32);
  EXPECT_EQ(plan_cache(in)->num_blocks, 512);
  in.host_bytes = least - 1;
  EXPECT_TRUE(plan_cache(in).status().message().ends_with(std::to_string(least))) << plan_cache(in).status().message();
  in.store_below_host = false, in.host_bytes = 100 * kColumn;
  EXPECT_NE(plan_cache(in).status().message().find("with --kv-store below it"), std::string::npos);
  in.kv_tokens = 0;
  EXPECT_EQ(plan_cache(in)->num_blocks, 100);
  in.store_below_host = true;
  EXPECT_EQ(plan_cache(in)->num_blocks, 512);
}

TEST(CachePlan, ABudgetThatGrowsTakesHalfOfTheColumnsAtMost) {
  CachePlanInputs in = inputs(512 * resident(4) + (kStaging + 24) * (kColumn + kColumnTables));
  in.row_blocks = 0, in.growing_row_blocks = 150;
  EXPECT_EQ(plan_cache(in)->reserve_columns, 12);
}

}  // namespace
}  // namespace fovea
