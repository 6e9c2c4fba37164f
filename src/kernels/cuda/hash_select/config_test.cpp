#include "kernels/cuda/hash_select/config.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace fovea::cuda::hash {
namespace {

HashSelectParams params(int32_t rows, int32_t bits, bool factors, int32_t max_len) {
  HashSelectParams p;
  p.rows = rows, p.num_heads = 32, p.kv_heads = 8, p.max_len = max_len;
  p.codes.codec.bits = bits, p.codes.codec.n = 128;
  p.codes.codec.asymmetric = p.codes.codec.length_factor = factors;
  return p;
}

TEST(HashSelectConfig, EqualsTheTable) {
  const SelectDevice hopper{132, 226 << 10, true}, ampere{108, 163 << 10};
  const struct {
    HashSelectParams p;
    SelectDevice device;
    const char* text;
  } rows[] = {
      {params(1, 64, false, 131072), hopper,
       "64 bits, 16 tokens of 16 blocks a warp, 15 CTAs of 20 + 8 warps a list, 82304 bytes, ranks in scratch, choosers apart"},
      {params(8, 64, true, 131072), hopper,
       "64 bits, 16 tokens of 16 blocks a warp, 2 CTAs of 24 + 8 warps a list, 156032 bytes, ranks in shared memory"},
      {params(8, 128, false, 131072), hopper,
       "128 bits, 16 tokens of 16 blocks a warp, 2 CTAs of 20 + 8 warps a list, 196992 bytes, ranks in shared memory"},
      {params(1, 128, false, 131072), hopper,
       "128 bits, 16 tokens of 16 blocks a warp, 15 CTAs of 20 + 8 warps a list, 164224 bytes, ranks in scratch, choosers apart"},
      {params(64, 64, false, 1 << 20), hopper,
       "64 bits, 16 tokens of 16 blocks a warp, 1 CTAs of 24 + 8 warps a list, 98688 bytes, ranks in scratch"},
      {params(64, 64, false, 131072), ampere,
       "64 bits, 16 tokens of 16 blocks a warp, 1 CTAs of 24 + 8 warps a list, 131456 bytes, ranks in shared memory"},
      {params(4, 64, false, 131072), ampere,
       "64 bits, 16 tokens of 16 blocks a warp, 3 CTAs of 24 + 8 warps a list, 98688 bytes, ranks in scratch"},
      {params(1, 256, true, 4096), ampere,
       "256 bits, 16 tokens of 16 blocks a warp, 12 CTAs of 4 + 8 warps a list, 70272 bytes, ranks in scratch, choosers apart"},
      {params(1, 64, false, 300), hopper,
       "64 bits, 16 tokens of 16 blocks a warp, 2 CTAs of 4 + 8 warps a list, 49228 bytes, ranks in shared memory"},
  };
  for (const auto& row : rows) EXPECT_EQ(choose_select(row.p, row.device).describe(), row.text);
}

// Scratch of such launches holds all their lists, and no more than it must: short ones have two parts each.
TEST(HashSelectConfig, ChoosersApartHaveFewLists) {
  const SelectDevice device{108, 163 << 10};
  int32_t most = 0;
  for (const int32_t max_len : {500, 131072}) {
    for (int32_t rows = 1; rows <= 64; ++rows) {
      for (const int32_t kv_heads : {1, 2, 3, 8, 32}) {
        HashSelectParams p = params(rows, 64, false, max_len);
        p.num_heads = p.kv_heads = kv_heads;
        if (choose_select(p, device).choosers_apart) most = std::max(most, rows * kv_heads);
      }
    }
  }
  EXPECT_EQ(most, most_lists_apart(device, 1 << 20));
}

TEST(HashSelectConfig, TheChoiceFindsItsWarpsAndItsMemory) {
  for (const int32_t bits : {64, 128, 192, 256}) {
    for (const bool factors : {false, true}) {
      for (const int32_t heads : {8, 64, 1024}) {
        HashSelectParams p = params(1, bits, factors, 131072);
        p.num_heads = heads;
        const SelectShape s = choose_select(p, {108, 163 << 10});
        EXPECT_GE(s.scorers, 1);
        EXPECT_LE(s.scorers, most_scorers(s.words));
        EXPECT_GE(s.shared_bytes, kChooserBytes);
        EXPECT_LE(s.shared_bytes, 163 << 10) << s.describe();
        EXPECT_TRUE(s.choosers_apart);
        EXPECT_GT(s.threads(), kChooserThreads);  // some mark ranks' places while these choose
      }
    }
  }
}

TEST(HashSelectConfig, FetchesEvenlyAndNothingBeyond) {
  const auto* data = reinterpret_cast<const char*>(uintptr_t{1} << 40);
  for (const int skipped : {0, 1, 15}) {
    for (const int64_t bytes : {0, 1, kFetchPiece, kFetchPiece + 15, 2 * kFetchPiece, 1000003, 117440512}) {
      for (const int64_t most : {int64_t{0}, int64_t{kFetchPiece}, kFetchBytes}) {
        const Fetch f = choose_fetch({data + skipped, bytes}, most);
        const int64_t there = bytes - (skipped > 0 ? 16 - skipped : 0);
        ASSERT_EQ(f.pieces, std::max<int64_t>(0, std::min(there, most)) / kFetchPiece) << bytes << " bytes, at most " << most;
        if (f.pieces == 0) continue;
        EXPECT_EQ(f.from, data + (skipped > 0 ? 16 : 0)) << "copies begin on 16 bytes";
        EXPECT_EQ(f.apart % 16, 0);
        EXPECT_GE(f.apart, kFetchPiece);
        const int64_t end = (f.pieces - 1) * f.apart + kFetchPiece;
        EXPECT_LE(end, there);
        EXPECT_GE(end + f.apart + 16 * f.pieces, there) << "to the end";
      }
    }
  }
  EXPECT_EQ(choose_fetch({}, kFetchBytes).pieces, 0);
  EXPECT_EQ(choose_fetch({data, kFetchBytes, WeightType::q4_k}, kFetchBytes).pieces, 0);
  EXPECT_EQ(choose_fetch({data, kFetchBytes, WeightType::f32}, kFetchBytes).pieces, kFetchBytes / kFetchPiece);
}

TEST(HashSelectConfig, ScratchHoldsAsManyRowsAsTheBudgetAllows) {
  OpsLimits limits;
  limits.max_len = 131072;  // 8,192 blocks of 4 bytes: 256 KiB a row of 8 heads
  limits.kv_heads = 8;
  limits.max_decode_rows = 256;
  EXPECT_EQ(choose_scratch(limits, int64_t{1} << 20).rows, 4);
  EXPECT_EQ(choose_scratch(limits, 1).rows, 1) << "never none";
  EXPECT_EQ(choose_scratch(limits).rows, 256) << "no more than there are";
  limits.max_len = 17;
  EXPECT_EQ(choose_scratch(limits).blocks, 4) << "two, in groups of four";
}

}  // namespace
}  // namespace fovea::cuda::hash
