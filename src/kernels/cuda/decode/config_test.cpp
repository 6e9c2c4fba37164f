#include "kernels/cuda/decode/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace fovea::cuda::decode {
namespace {

using ::testing::HasSubstr;

TEST(DecodeSplits, CoverEveryLengthWithAtMostTheMost) {
  for (const SplitRule rule : {SplitRule{}, SplitRule{128, 1}, SplitRule{128, 4}}) {
    for (int32_t keys : {0, 1, 127, 128, 129, 1000, 8192, 8193, 131072, 1 << 20, kKeysMax}) {
      const int64_t size = rule.split_keys(keys), splits = rule.splits(keys);
      EXPECT_GE(size, rule.min_keys);
      EXPECT_EQ(size % kTileKeys, 0);
      EXPECT_LE(splits, rule.max_splits) << keys;
      EXPECT_GE(splits, 1);
      EXPECT_GE(splits * size, keys);
      EXPECT_LT((splits - 1) * size, std::max(1, keys)) << "no empty split of " << keys;
    }
  }
}

// A grid is made for the longest list: shorter ones may have more splits, of the least size.
TEST(DecodeSplits, OfAListAreNoMoreThanThoseThatAnyUpToItHas) {
  for (const int32_t splits : {1, 16, 33, 66}) {
    const SplitRule rule{128, splits};
    int32_t most = 0;
    for (int32_t keys = 1; keys < 20000; ++keys) {
      most = std::max(most, rule.splits(keys));
      ASSERT_EQ(rule.most_splits(keys), most) << keys;
    }
  }
}

TEST(DecodeSplits, StayWithinTheBudget) {
  OpsLimits limits;
  limits.max_len = 131072;
  limits.num_heads = 32;
  limits.head_dim = 128;
  for (int32_t rows : {1, 16, 64, 256, 1024}) {
    limits.max_decode_rows = rows;
    const SplitRule rule = choose_splits(limits, int64_t{256} << 20);
    EXPECT_LE(partial_bytes(limits, rule), int64_t{256} << 20) << rows;
    EXPECT_GE(rule.max_splits, 4);
  }
  limits.max_decode_rows = 16;
  EXPECT_EQ(choose_splits(limits).max_splits, SplitRule{}.max_splits);
  for (auto [kv_heads, splits] : {std::pair{2, 66}, {4, 66}, {8, 33}, {32, 16}, {64, 16}}) {
    limits.kv_heads = kv_heads;
    EXPECT_EQ(choose_splits(limits).max_splits, splits) << kv_heads;
  }
}

// What an engine for short contexts allocates does not show in its results.
TEST(DecodeSplits, OfShortContextsAreThoseOfLongOnes) {
  OpsLimits limits;
  for (int64_t max_len : {1, 100, 128, 2000, 8000}) {
    limits.max_len = max_len;
    const SplitRule rule = choose_splits(limits);
    for (int32_t keys = 1; keys <= max_len + kTileKeys; keys += 7) {
      EXPECT_EQ(rule.split_keys(keys), SplitRule{}.split_keys(keys)) << max_len << " " << keys;
    }
  }
}

AttentionParams params(int32_t heads, int32_t kv_heads, int32_t dim, DType dtype) {
  AttentionParams p;
  p.rows = 2;
  p.num_heads = heads;
  p.kv.kv_heads = kv_heads;
  p.kv.head_dim = dim;
  p.kv.dtype = dtype;
  return p;
}

TEST(DecodeShapes, OfGroupsAndDimensions) {
  const SplitRule rule;
  Shape s = choose_shape(params(32, 8, 128, DType::bf16), 131072, rule);
  EXPECT_EQ(s.path, Path::mma);
  EXPECT_EQ(s.dim_class, 128);
  EXPECT_EQ(s.tile_heads, 8);
  EXPECT_EQ(s.head_tiles, 1);
  EXPECT_EQ(s.max_items, 2 * 8 * rule.splits(131072 + kTileKeys));
  EXPECT_THAT(s.describe(), HasSubstr("mma d<=128, 8 lists of 4 heads"));

  s = choose_shape(params(16, 1, 96, DType::f16), 1000, rule);
  EXPECT_EQ(s.tile_heads, 16);
  EXPECT_EQ(s.dim_class, 128);

  s = choose_shape(params(40, 2, 256, DType::fp8_e4m3), 1000, rule);
  EXPECT_EQ(s.tile_heads, 8);
  EXPECT_EQ(s.head_tiles, 3);

  EXPECT_EQ(choose_shape(params(4, 2, 64, DType::f32), 1000, rule).path, Path::scalar);
  AttentionParams classic = params(4, 2, 64, DType::bf16);
  classic.kv.layout = KvLayout::classic;
  EXPECT_EQ(choose_shape(classic, 1000, rule).path, Path::classic);
}

TEST(DecodeShapes, FewPlainRowsHaveAKernelOfAThreadBlockASplit) {
  const auto has = [](auto&& change) {
    AttentionParams p = params(32, 8, 128, DType::bf16);
    Selection s;
    s.capacity = 16;
    s.groups = 8;
    p.selection = &s;
    change(p, s);
    return has_split_kernel(p, choose_shape(p, 4096, SplitRule{}));
  };
  const auto list = [](Selection& s, HeadGroups heads) { s.kind = Selection::Kind::list, s.heads = heads; };
  EXPECT_TRUE(has([](auto&, auto&) {}));
  EXPECT_TRUE(has([](auto& p, auto&) { p.selection = nullptr, p.kv.head_dim = 64, p.kv.dtype = DType::fp8_e4m3; }));
  EXPECT_TRUE(has([&](auto&, auto& s) { list(s, HeadGroups::per_kv_head), s.tokens_per_unit = 64; }));
  EXPECT_TRUE(has([&](auto&, auto& s) { list(s, HeadGroups::all); }));
  EXPECT_FALSE(has([&](auto&, auto& s) { list(s, HeadGroups::per_query_head); }));
  EXPECT_FALSE(has([&](auto&, auto& s) { list(s, HeadGroups::all), s.tokens_per_unit = 8; })) << "a tile is of two units";
  EXPECT_FALSE(has([&](auto&, auto& s) { list(s, HeadGroups::all), s.tokens_per_unit = 48; }));
  EXPECT_FALSE(has([&](auto&, auto& s) { s.kind = Selection::Kind::range, s.heads = HeadGroups::all; }));
  EXPECT_FALSE(has([](auto& p, auto&) { p.rows = kSplitRows + 1; }));
  EXPECT_FALSE(has([](auto& p, auto&) { p.kv.head_dim = 96; }));
  EXPECT_FALSE(has([](auto& p, auto&) { p.kv.block_size = 8; })) << "a tile is of two blocks";
  EXPECT_FALSE(has([](auto& p, auto&) { p.num_heads = 128; })) << "16 heads of a list";
  EXPECT_FALSE(has([](auto& p, auto&) { p.kv.dtype = DType::f32; }));
  EXPECT_FALSE(has([](auto& p, auto&) { p.dtype = DType::bf16; }));
  EXPECT_FALSE(has([](auto& p, auto&) { p.window = 100; }));
  EXPECT_FALSE(has([](auto& p, auto&) { p.soft_cap = 10; }));
}

TEST(DecodeShapes, ListsOfMoreRowsHaveAClusterEach) {
  const ClusterRoom room = {132, 66, 30, 15};  // of an H100
  const auto ctas = [&](int32_t rows, auto&& change) {
    AttentionParams p = params(32, 8, 128, DType::bf16);
    Selection s;
    p.rows = rows;
    s.kind = Selection::Kind::list, s.heads = HeadGroups::per_kv_head, s.groups = 8;
    s.tokens_per_unit = 16, s.capacity = 128;
    p.selection = &s;
    SplitRule rule{128, 33};
    change(p, s, rule);
    return choose_cluster(p, choose_shape(p, 131072, rule), rule, room);
  };
  const auto as_is = [](auto&, auto&, auto&) {};
  for (const auto& [rows, want] : {std::pair{1, 8}, {2, 4}, {3, 4}, {4, 2}, {8, 2}, {9, 1}, {16, 1}, {17, 0}}) {
    EXPECT_EQ(ctas(rows, as_is), want) << rows;
  }
  EXPECT_EQ(ctas(8, [](auto&, auto& s, auto&) { s.capacity = 256; }), 2);
  EXPECT_EQ(ctas(8, [](auto&, auto& s, auto&) { s.capacity = 257; }), 0) << "33 splits";
  EXPECT_EQ(ctas(8, [](auto&, auto& s, auto& r) { s.capacity = 129, r.max_splits = 16; }), 0) << "splits of 144";
  EXPECT_EQ(ctas(16, [](auto&, auto& s, auto&) { s.capacity = 129; }), 0) << "4 heads of 17 splits in one thread block";
  EXPECT_EQ(ctas(8, [](auto& p, auto&, auto&) { p.num_heads = 64; }), 2);
  EXPECT_EQ(ctas(8, [](auto&, auto& s, auto&) { s.kind = Selection::Kind::all; }), 0);
  EXPECT_EQ(ctas(8, [](auto& p, auto&, auto&) { p.window = 100; }), 0);
}

TEST(DecodeShapes, ListsOfQueryHeadsAreWalkedOneByOne) {
  AttentionParams p = params(32, 8, 128, DType::bf16);
  Selection selection;
  selection.kind = Selection::Kind::list;
  selection.heads = HeadGroups::per_query_head;
  selection.capacity = 16;
  p.selection = &selection;
  const Shape s = choose_shape(p, 131072, SplitRule{});
  EXPECT_EQ(s.lists, 32);
  EXPECT_EQ(s.heads_per_list, 1);
  EXPECT_EQ(s.max_items, 2 * 32 * 2) << "256 keys of a list, not those of the sequence";
}

}  // namespace
}  // namespace fovea::cuda::decode
