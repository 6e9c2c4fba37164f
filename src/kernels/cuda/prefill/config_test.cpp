#include "kernels/cuda/prefill/config.h"

#include <gtest/gtest.h>

namespace fovea::cuda {
namespace {

PrefillShape llama(int32_t rows) {
  return {.head_dim = 128, .num_heads = 32, .kv_heads = 8, .rows = rows, .num_seqs = 1, .sm_count = 132};
}

TEST(PrefillConfig, AGroupSharesATile) {
  const PrefillConfig c = choose(llama(32768));
  EXPECT_EQ(to_string(c), "mma bf16 d128, 128 lanes = 32 rows x 4 heads, grid 1025 x 8");
}

PrefillShape llama_on_hopper(int32_t rows) {
  PrefillShape s = llama(rows);
  s.hopper = true;
  return s;
}

TEST(PrefillConfig, FewRowsSpreadWiderOnHopper) {
  EXPECT_EQ(to_string(choose(llama_on_hopper(512))), "wgmma bf16 d128, 128 lanes = 32 rows x 4 heads, grid 17 x 8");
  EXPECT_EQ(choose(llama_on_hopper(256)).lanes, 64);
  EXPECT_EQ(choose(llama_on_hopper(1)).grid_tiles, 1);
}

// Of a smaller head_dim, registers hold what a third warpgroup needs.
TEST(PrefillConfig, TilesOfHeadDim64AreLargerOnHopper) {
  PrefillShape s = llama_on_hopper(32768);
  s.head_dim = 64;
  EXPECT_EQ(to_string(choose(s)), "wgmma bf16 d64, 192 lanes = 48 rows x 4 heads, grid 684 x 8");
}

// What decides over a row's bits: the kernel, and before Hopper also its tile.
TEST(PrefillConfig, TheRowsDoNotChooseTheArithmetic) {
  for (int32_t rows : {1, 7, 100, 2048, 100000}) {
    for (bool hopper : {false, true}) {
      for (bool selected : {false, true}) {
        PrefillShape few = llama(rows), many = llama(1 << 20);
        few.hopper = many.hopper = hopper;
        few.selected = many.selected = selected;
        few.tokens_per_unit = many.tokens_per_unit = 128;
        few.list_rows = 1;
        many.num_seqs = many.list_rows = 100;
        const PrefillConfig a = choose(few), b = choose(many);
        EXPECT_EQ(a.path, b.path);
        EXPECT_EQ(a.math, b.math);
        EXPECT_EQ(a.padded_dim, b.padded_dim);
        EXPECT_EQ(a.box_keys, b.box_keys);
        if (!hopper) {
          EXPECT_EQ(a.lanes, b.lanes);
        }
      }
    }
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
  const PrefillConfig c = choose({.head_dim = 64, .num_heads = 600, .kv_heads = 2, .rows = 10, .num_seqs = 1, .sm_count = 1});
  EXPECT_GE(c.heads_per_tile * c.tiles_per_group, 300);
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

TEST(PrefillConfig, HopperTakesWhatItsCopiesReach) {
  PrefillShape s = llama_on_hopper(1000);
  EXPECT_EQ(choose(s).box_keys, 16);
  s.block_size = 256;
  EXPECT_EQ(choose(s).box_keys, 128);
  s.selected = true;
  s.tokens_per_unit = 24;
  EXPECT_EQ(choose(s).box_keys, 8);
  s.tokens_per_unit = 4;
  EXPECT_EQ(choose(s).path, PrefillPath::mma);
  s = llama_on_hopper(1000);
  s.alibi = true;
  EXPECT_EQ(choose(s).path, PrefillPath::mma);
  s.alibi = false;
  s.head_dim = 144;
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
