#include "kernels/cuda/xattention/config.h"

#include <gtest/gtest.h>

namespace fovea::cuda::xattention {
namespace {

XAttentionParams llama(int32_t tiles) {
  XAttentionParams p;
  p.num_heads = 32;
  p.kv.kv_heads = 8;
  p.kv.head_dim = 128;
  p.tiles = tiles;
  p.capacity = 1024;
  return p;
}

OpsLimits limits(int32_t stride) {
  OpsLimits l;
  l.max_rows = 8192;
  l.max_len = 1024 * 128;
  l.num_heads = 32;
  l.kv_heads = 8;
  l.head_dim = 128;
  l.xattention_stride = stride;
  return l;
}

TEST(XAttentionConfig, ThePathFollowsFromNumericsDtypeAndDevice) {
  EXPECT_EQ(to_string(choose(Numerics::bf16, DType::bf16, true)), "wgmma bf16, 256 lanes x 128 cells");
  EXPECT_EQ(to_string(choose(Numerics::bf16, DType::fp8_e5m2, false)), "mma f16, 128 lanes x 64 cells");
  EXPECT_EQ(choose(Numerics::bf16, DType::f32, true).path, Path::f32);
  EXPECT_EQ(choose(Numerics::f32, DType::bf16, true).path, Path::f32);
}

TEST(XAttentionConfig, HalvesOfTheDepthBeginSteps) {
  EXPECT_EQ(half_steps(16, 128), 16);
  EXPECT_EQ(half_steps(4, 80), 3);  // 160 elements
  EXPECT_EQ(half_steps(4, 16), 1);
}

TEST(XAttentionConfig, APassTakesWhatScratchHolds) {
  const Config c = choose(Numerics::bf16, DType::bf16, true);
  const Footprint f = footprint(llama(1), c, 5);
  EXPECT_EQ(f.lanes, 256) << "5 tiles x 8 cells x 4 heads, in whole tiles of the product";
  EXPECT_EQ(f.query_bytes, 8 * 256 * 2048 * 2);
  EXPECT_EQ(f.run_slots, 11) << "8 tiles of 32 lanes, or 7 and two in part, and the end";
  EXPECT_EQ(f.place_bytes, 16 * (256 + 11));
  EXPECT_EQ(f.weight_bytes, 5 * 8 * 32 * 1024 * 4);
  EXPECT_EQ(f.greatest_bytes, f.weight_bytes / 16) << "128 cells: 16 blocks";
  const Scratch s = choose_scratch(limits(16), Numerics::bf16);
  EXPECT_EQ(tiles_of_pass(llama(1024), c, s), 64) << "of 67 that fit, in eights: whole tiles of lanes";
  EXPECT_EQ(tiles_of_pass(llama(61), c, s), 61);
  EXPECT_EQ(tiles_of_pass(llama(3), c, s), 3);
}

TEST(XAttentionConfig, OneTileOfAnyLegalCallFits) {
  for (Numerics numerics : {Numerics::bf16, Numerics::f32}) {
    for (int32_t least : {4, 16, 64}) {
      const Scratch s = choose_scratch(limits(least), numerics, 0);
      for (int32_t stride = least; stride <= 64; stride *= 2) {
        for (int32_t block : {64, 128}) {
          for (DType t : {DType::bf16, DType::f16, DType::f32, DType::fp8_e4m3}) {
            for (bool hopper : {false, true}) {
              XAttentionParams p = llama(9);
              p.stride = stride;
              p.block_size = block;
              p.capacity = 131072 / block + 1;
              p.kv.dtype = t;
              EXPECT_GE(tiles_of_pass(p, choose(numerics, t, hopper), s), 1) << stride << " " << block;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace fovea::cuda::xattention
