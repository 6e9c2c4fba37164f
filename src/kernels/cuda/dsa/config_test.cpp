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
  EXPECT_EQ(choose_scratch(limits(1100, 2048)).lists, 1100) << "no more than there are rows";
  EXPECT_EQ(choose_scratch(limits(1, 2048)).lists, 1056) << "ranges of a single row's keys";
  EXPECT_EQ(choose_scratch(limits(1, 1)).capacity, 1025);
  EXPECT_EQ(choose_scratch(limits(512, 1 << 24)).lists, 32) << "never fewer";
}

TEST(DsaWay, EqualsTheTable) {
  using enum IndexPrecision;
  const struct {
    IndexPrecision precision;
    int32_t heads, dim, block_size;
    const char* text;
  } rows[] = {
      {bf16, 64, 128, 16, "wgmma, 8 rows of 64 heads, copies of 16 keys"},
      {fp8, 64, 128, 64, "wgmma, 8 rows of 64 heads, copies of 64 keys"},
      {fp8, 4, 16, 256, "wgmma, 32 rows of 16 heads, copies of 64 keys"},
      {bf16, 65, 8, 8, "wgmma, 4 rows of 128 heads, copies of 8 keys"},
      {exact, 64, 128, 16, "fma, 4 rows"},
      {fp8, 64, 8, 16, "fma, 4 rows"},  // 8 bytes a key
      {bf16, 64, 136, 16, "fma, 4 rows"},
      {bf16, 64, 128, 4, "fma, 4 rows"},
  };
  for (const auto& row : rows) {
    IndexTopkParams p;
    p.heads = row.heads;
    p.keys.precision = row.precision, p.keys.dim = row.dim, p.keys.block_size = row.block_size;
    EXPECT_EQ(choose_way(p, true).describe(), row.text);
    EXPECT_EQ(choose_way(p, false).path, Path::fma);
  }
}

TEST(DsaPass, FewRowsShareTheDeviceByRangesOfKeys) {
  const Scratch scratch{.lists = 1000, .capacity = 4096};
  const DsaDevice device{.sm_count = 132, .clusters = true};
  const Way fma{.group = 4, .ctas_per_sm = 3}, wgmma{.path = Path::wgmma, .group = 8, .ctas_per_sm = 1};
  EXPECT_EQ(choose_pass(4096, 131072, fma, device, scratch).describe(), "1000 rows in 250 groups, 1 ranges of keys, chosen by 1");
  EXPECT_EQ(choose_pass(1, 131072, fma, device, scratch).describe(), "1 rows in 1 groups, 128 ranges of keys, chosen by 8");
  EXPECT_EQ(choose_pass(8, 131072, fma, device, scratch).describe(), "8 rows in 2 groups, 125 ranges of keys, chosen by 8");
  EXPECT_EQ(choose_pass(8, 4096, fma, device, scratch).describe(), "8 rows in 2 groups, 4 ranges of keys, chosen by 4");
  EXPECT_EQ(choose_pass(8, 100, fma, device, scratch).describe(), "8 rows in 2 groups, 1 ranges of keys, chosen by 1");
  EXPECT_EQ(choose_pass(520, 131072, wgmma, device, scratch).describe(), "520 rows in 65 groups, 1 ranges of keys, chosen by 1");
  EXPECT_EQ(choose_pass(1, 131072, fma, {.sm_count = 108}, scratch).peers, 1);
  EXPECT_EQ(choose_pass(16, 131072, wgmma, device, scratch).describe(), "16 rows in 2 groups, 62 ranges of keys, chosen by 4");
}

}  // namespace
}  // namespace fovea::cuda::dsa
