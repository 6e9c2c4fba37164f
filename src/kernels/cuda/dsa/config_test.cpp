#include "kernels/cuda/dsa/config.h"

#include <gtest/gtest.h>

namespace fovea::cuda::dsa {
namespace {

OpsLimits limits(int32_t max_rows, int32_t topk) {
  OpsLimits l;
  l.max_rows = max_rows;
  l.max_len = 131072;
  l.index_topk = topk;
  return l;
}

TEST(DsaScratch, HoldsAsManyListsAsTheBudgetAllows) {
  EXPECT_EQ(choose_scratch(limits(4096, 2048)).lists, 2048);
  EXPECT_EQ(choose_scratch(limits(4096, 2048)).capacity, 4096);
  EXPECT_EQ(choose_scratch(limits(600, 2048)).lists, 600) << "no more than there are rows";
  EXPECT_EQ(choose_scratch(limits(1, 2048)).lists, 512) << "ranges of a single row's keys";
  EXPECT_EQ(choose_scratch(limits(1, 1)).capacity, 1025);
  EXPECT_EQ(choose_scratch(limits(512, 1 << 24)).lists, 8) << "never fewer";
}

TEST(DsaPass, FewRowsShareTheDeviceByRangesOfKeys) {
  const Scratch scratch{.lists = 1000, .capacity = 4096};
  EXPECT_EQ(choose_pass(4096, 131072, 4, 396, scratch).describe(), "1000 rows in 250 groups, 1 ranges of keys");
  EXPECT_EQ(choose_pass(1, 131072, 4, 396, scratch).describe(), "1 rows in 1 groups, 128 ranges of keys");
  EXPECT_EQ(choose_pass(8, 131072, 4, 396, scratch).describe(), "8 rows in 2 groups, 125 ranges of keys");
  EXPECT_EQ(choose_pass(8, 4096, 4, 396, scratch).describe(), "8 rows in 2 groups, 4 ranges of keys");
  EXPECT_EQ(choose_pass(8, 100, 4, 396, scratch).describe(), "8 rows in 2 groups, 1 ranges of keys");
}

}  // namespace
}  // namespace fovea::cuda::dsa
