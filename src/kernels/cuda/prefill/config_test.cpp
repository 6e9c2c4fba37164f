#include "kernels/cuda/prefill/config.h"

#include <gtest/gtest.h>

namespace fovea::cuda {
namespace {

PrefillShape llama(int32_t rows) {
  return {.head_dim = 128, .num_heads = 32, .kv_heads = 8, .rows = rows, .num_seqs = 1, .sm_count = 132};
}

TEST(PrefillConfig, AGroupSharesATile) {
  const PrefillConfig c = choose(llama(32768));
  EXPECT_EQ(to_string(c), "mma bf16 d128, 256 lanes = 64 rows x 4 heads, grid 513 x 8");
}

TEST(PrefillConfig, FewRowsSpreadWider) {
  EXPECT_EQ(choose(llama(512)).lanes, 64);
  EXPECT_EQ(choose(llama(1)).grid_tiles, 1);
}

TEST(PrefillConfig, OnlyTheTileDependsOnTheRows) {
  for (int32_t rows : {1, 7, 100, 2048, 100000}) {
    PrefillConfig few = choose(llama(rows)), many = choose(llama(1 << 20));
    EXPECT_EQ(few.path, many.path);
    EXPECT_EQ(few.math, many.math);
    EXPECT_EQ(few.padded_dim, many.padded_dim);
  }
}

TEST(PrefillConfig, ListsDecideWhoSharesATile) {
  PrefillShape s = llama(4096);
  s.selected = true;
  s.lone_heads = true;
  s.list_rows = 32;
  PrefillConfig c = choose(s);
  EXPECT_EQ(c.heads_per_tile, 1);
  EXPECT_EQ(c.rows_per_tile, 128);
  EXPECT_EQ(c.grid_heads, 32);
  EXPECT_EQ(c.grid_tiles, 32 + 1 + 32);
  s.lone_heads = false;
  s.list_per_row = true;
  c = choose(s);
  EXPECT_EQ(c.rows_per_tile, 1);
  EXPECT_EQ(c.heads_per_tile, 4);
  EXPECT_EQ(c.grid_tiles, 4096);
}

TEST(PrefillConfig, AGroupLargerThanATileIsCut) {
  const PrefillConfig c = choose(
      {.head_dim = 64, .num_heads = 260, .kv_heads = 2, .rows = 10, .num_seqs = 1, .sm_count = 1});
  EXPECT_EQ(c.heads_per_tile * c.tiles_per_group >= 130, true);
  EXPECT_LE(c.heads_per_tile, c.lanes);
  EXPECT_EQ(c.grid_heads, 2 * c.tiles_per_group);
}

TEST(PrefillConfig, ThePathFollowsFromNumericsDtypeAndLayout) {
  PrefillShape s = llama(100);
  EXPECT_EQ(choose(s).path, PrefillPath::mma);
  s.layout = KvLayout::classic;
  EXPECT_EQ(choose(s).path, PrefillPath::mma_converted);
  s.kv_dtype = DType::fp8_e4m3;
  EXPECT_EQ(choose(s).math, DType::f16);
  s.kv_dtype = DType::f32;
  EXPECT_EQ(choose(s).path, PrefillPath::f32);
  s.kv_dtype = DType::bf16;
  s.numerics = Numerics::f32;
  EXPECT_EQ(choose(s).path, PrefillPath::f32);
}

TEST(PrefillConfig, WhatHasNoRoomRunsInFloat32) {
  PrefillShape s = llama(100);
  s.head_dim = 256;
  EXPECT_EQ(choose(s).path, PrefillPath::mma);
  s.shared_kib = 163;
  EXPECT_EQ(choose(s).path, PrefillPath::f32);
  s.head_dim = 192;
  EXPECT_EQ(choose(s).path, PrefillPath::mma);
}

TEST(PrefillConfig, EveryHeadDimFitsItsKernel) {
  for (DType t : {DType::bf16, DType::f16, DType::f32, DType::fp8_e4m3}) {
    for (int32_t d = 64; d <= 256; d += 16) {
      PrefillShape s = llama(100);
      s.kv_dtype = t;
      s.head_dim = d;
      EXPECT_GE(choose(s).padded_dim, d);
      EXPECT_LE(choose(s).padded_dim, 2 * d);
    }
  }
}

}  // namespace
}  // namespace fovea::cuda
