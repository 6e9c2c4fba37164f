#include "kernels/cuda/hash_select/config.h"

#include <gtest/gtest.h>

namespace fovea::cuda::hash {
namespace {

TEST(HashScanConfig, EqualsTheTable) {
  const struct {
    int32_t bits, n, block_size, max_len;
    const char* text;
  } rows[] = {
      {128, 128, 16, 131072, "128 bits, 8 lanes a block in 1 steps, 128 blocks a CTA, 64 CTAs a list"},
      {128, 64, 16, 1, "128 bits, 8 lanes a block in 1 steps, 128 blocks a CTA, 1 CTAs a list"},
      {256, 256, 16, 2049, "256 bits, 8 lanes a block in 1 steps, 64 blocks a CTA, 3 CTAs a list"},
      {64, 64, 256, 65536, "64 bits, 32 lanes a block in 4 steps, 32 blocks a CTA, 8 CTAs a list"},
  };
  for (const auto& row : rows) {
    HashSelectParams p;
    p.codes.codec.bits = row.bits;
    p.codes.codec.n = row.n;
    p.block_size = row.block_size;
    p.max_len = row.max_len;
    EXPECT_EQ(choose_scan(p).describe(), row.text);
  }
}

TEST(HashScanConfig, ScratchHoldsAsManyRowsAsTheBudgetAllows) {
  OpsLimits limits;
  limits.max_len = 131072;  // 8,192 blocks of 2 bytes: 128 KiB a row of 8 heads
  limits.kv_heads = 8;
  limits.max_decode_rows = 256;
  EXPECT_EQ(choose_scratch(limits, int64_t{1} << 20).rows, 8);
  EXPECT_EQ(choose_scratch(limits, 1).rows, 1) << "never none";
  EXPECT_EQ(choose_scratch(limits).rows, 256) << "no more than there are";
  limits.max_len = 17;
  EXPECT_EQ(choose_scratch(limits).blocks, kChunk);
}

}  // namespace
}  // namespace fovea::cuda::hash
