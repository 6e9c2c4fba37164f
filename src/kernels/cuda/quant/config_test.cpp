#include "kernels/cuda/quant/config.h"

#include <gtest/gtest.h>

namespace fovea::cuda::quant {
namespace {

constexpr GpuShape kHopper = {132, 233472, 232448}, kAda = {128, 102400, 101376};

TEST(QuantGemvPlan, LeavesRoomForTwoThreadBlocksWhereItCan) {
  for (int type = static_cast<int>(WeightType::q8_0); type < kWeightTypes; ++type) {
    for (const int k : {32, 256, 4096, 14336}) {
      for (const int columns : {1, 3, 8, 16}) {
        const auto t = static_cast<WeightType>(type);
        if (k % weight_format(t).block != 0) continue;
        const GemvPlan p = plan_gemv(t, k, columns, 256, kHopper);
        EXPECT_LE(2 * (p.shared_bytes + 1024), kHopper.shared_bytes) << weight_type_name(t) << " " << k << " " << columns;
        EXPECT_LE(plan_gemv(t, k, columns, 256, kAda).shared_bytes, kAda.shared_bytes_block);
        EXPECT_EQ(p.row_stride % 32, 16);
        if (columns <= kDotRowsMax) {
          const GemvPlan dot = plan_dot(t, k, columns, 256, kHopper);
          EXPECT_LE(dot.shared_bytes, kHopper.shared_bytes_block);
          EXPECT_GT(dot.x_bytes, 0);
          EXPECT_EQ(dot.tile_step, dot.teams * dot.thread_blocks);
          if (columns == 1) EXPECT_EQ(dot.teams, 2) << weight_type_name(t) << " " << k;
        }
        EXPECT_GE(p.stage_blocks * p.pieces * (weight_format(t).block == 1 ? 32 : weight_format(t).block), k);
      }
    }
  }
}

TEST(QuantGemvPlan, EqualsTheTable) {
  const struct {
    WeightType type;
    int k, columns, tiles, stage_blocks, pieces, x_bytes, thread_blocks;
  } rows[] = {
      {WeightType::q4_k, 4096, 1, 384, 2, 8, 8192, 264},     {WeightType::q4_k, 14336, 1, 256, 2, 28, 28672, 256},
      {WeightType::q4_k, 14336, 2, 256, 2, 28, 0, 256},      {WeightType::q4_k, 4096, 1, 1792, 2, 8, 8192, 264},
      {WeightType::q4_k, 512, 1, 3, 1, 2, 1024, 3},          {WeightType::q8_0, 4096, 1, 256, 8, 16, 8192, 256},
      {WeightType::fp8_e4m3, 4096, 16, 8016, 8, 16, 0, 264}, {WeightType::int4, 4096, 1, 256, 16, 8, 8192, 256},
      {WeightType::mxfp4, 96, 3, 1, 1, 3, 576, 1},
  };
  for (const auto& r : rows) {
    const GemvPlan p = plan_gemv(r.type, r.k, r.columns, r.tiles, kHopper);
    EXPECT_EQ(p.stage_blocks, r.stage_blocks) << weight_type_name(r.type) << " " << r.k;
    EXPECT_EQ(p.pieces, r.pieces) << weight_type_name(r.type) << " " << r.k;
    EXPECT_EQ(p.x_bytes, r.x_bytes) << weight_type_name(r.type) << " " << r.k;
    EXPECT_EQ(p.thread_blocks, r.thread_blocks) << weight_type_name(r.type) << " " << r.k;
  }
}

TEST(QuantBytesPlan, GivesWarpsAsManyPiecesAsEachOther) {
  const struct {
    int k, pieces, warps;
  } rows[] = {{256, 1, 1}, {288, 2, 2}, {3072, 12, 12}, {4096, 16, 8}, {8192, 32, 11}, {11008, 43, 11}, {14336, 56, 12}};
  for (const auto& r : rows) {
    const BytesPlan p = plan_bytes(r.k);
    EXPECT_EQ(p.pieces, r.pieces) << r.k;
    EXPECT_EQ(p.warps, r.warps) << r.k;
  }
}

}  // namespace
}  // namespace fovea::cuda::quant
