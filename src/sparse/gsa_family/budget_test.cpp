#include "sparse/gsa_family/budget.h"

#include <gtest/gtest.h>

namespace fovea {
namespace {

// Nothing but what the test sets: no windows, no floor.
GsaOptions bare() {
  GsaOptions o;
  o.init_window_sz = 0;
  o.local_window_sz = 0;
  o.min_blocks = 0;
  return o;
}

TEST(GsaBlocksKept, TheRatioIsExactInDecimals) {
  GsaOptions o = bare();
  o.sparse_ratio = 0.28;
  EXPECT_EQ(gsa_blocks_kept(o, 0, 25, 16), 7);
  o.sparse_ratio = 0.29;  // 0.29 * 100 is 28.999... in binary
  EXPECT_EQ(gsa_blocks_kept(o, 0, 100, 16), 29);
  o.sparse_ratio = 0.57;
  EXPECT_EQ(gsa_blocks_kept(o, 0, 100, 16), 57);
  o.sparse_ratio = 0.3;
  EXPECT_EQ(gsa_blocks_kept(o, 0, 10, 16), 3);
  EXPECT_EQ(gsa_blocks_kept(o, 0, 99, 16), 29);  // 29.7 is cut
  o.sparse_ratio = 0.0001;
  EXPECT_EQ(gsa_blocks_kept(o, 0, 9999, 16), 0);
  EXPECT_EQ(gsa_blocks_kept(o, 0, 10000, 16), 1);
  o.sparse_ratio = 1.0;
  EXPECT_EQ(gsa_blocks_kept(o, 0, 123, 16), 123);
}

TEST(GsaBlocksKept, ALongContextDoesNotOverflow) {
  GsaOptions o = bare();
  o.sparse_ratio = 1.0;
  EXPECT_EQ(gsa_blocks_kept(o, 0, int64_t{1} << 27, 8), 1 << 27);  // 2^30 tokens
  o.sparse_ratio = 0.5;
  EXPECT_EQ(gsa_blocks_kept(o, 0, int64_t{1} << 27, 8), 1 << 26);
}

TEST(GsaBlocksKept, ABudgetInTokensIsRoundedUpToBlocks) {
  GsaOptions o = bare();
  o.budget_tokens = 512;
  EXPECT_EQ(gsa_blocks_kept(o, 0, 2048, 16), 32);
  EXPECT_EQ(gsa_blocks_kept(o, 0, 2048, 64), 8);
  o.budget_tokens = 513;
  EXPECT_EQ(gsa_blocks_kept(o, 0, 2048, 16), 33);
  o.budget_tokens = 1;
  EXPECT_EQ(gsa_blocks_kept(o, 0, 2048, 16), 1);
}

TEST(GsaBlocksKept, TheRequestsBudgetWinsOverTheOptions) {
  GsaOptions o = bare();
  EXPECT_EQ(gsa_blocks_kept(o, 160, 2048, 16), 10) << "over the ratio";
  o.budget_tokens = 512;
  EXPECT_EQ(gsa_blocks_kept(o, 160, 2048, 16), 10) << "downwards";
  EXPECT_EQ(gsa_blocks_kept(o, 1600, 2048, 16), 100) << "upwards";
  EXPECT_EQ(gsa_blocks_kept(o, 0, 2048, 16), 32) << "0 is no budget";
}

TEST(GsaBlocksKept, FloorsAndWindowsCountInsideK) {
  GsaOptions o = bare();
  o.budget_tokens = 16;
  o.min_blocks = 4;
  EXPECT_EQ(gsa_blocks_kept(o, 0, 2048, 16), 4);
  o.init_window_sz = 3;
  o.local_window_sz = 5;
  EXPECT_EQ(gsa_blocks_kept(o, 0, 2048, 16), 8) << "the windows raise k, but are not added to it";
  o.budget_tokens = 160;
  EXPECT_EQ(gsa_blocks_kept(o, 0, 2048, 16), 10);
  EXPECT_EQ(gsa_blocks_kept(o, 16, 2048, 16), 8) << "also under a request's budget";
}

TEST(GsaBlocksKept, NeverMoreThanThereAre) {
  GsaOptions o;  // defaults: windows 1 and 2, at least 4
  o.budget_tokens = 512;
  for (int64_t blocks : {0, 1, 3, 4, 31, 32}) EXPECT_EQ(gsa_blocks_kept(o, 0, blocks, 16), blocks);
  EXPECT_EQ(gsa_blocks_kept(o, 0, 33, 16), 32);
  EXPECT_EQ(gsa_blocks_kept(o, INT32_MAX, 33, 16), 33);
}

TEST(GsaBlocksKept, DefaultsAreThePublishedOnes) {
  const GsaOptions o;
  EXPECT_EQ(gsa_blocks_kept(o, 0, 1000, 16), 300);
  EXPECT_EQ(gsa_blocks_kept(o, 0, 10, 16), 4) << "min_blocks over 0.3";
}

}  // namespace
}  // namespace fovea
