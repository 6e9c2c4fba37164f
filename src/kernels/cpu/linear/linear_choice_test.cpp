#include "kernels/cpu/linear/linear_choice.h"

#include <gtest/gtest.h>

namespace fovea::cpu {
namespace {

TEST(LinearChoice, EqualsTheTable) {
  const CpuFeatures none, avx512{.avx512_bf16 = true}, amx{.avx512_bf16 = true, .amx_bf16 = true};
  const LinearHost f32{Numerics::f32, amx}, plain{Numerics::bf16, none}, vectors{Numerics::bf16, avx512},
      tiles{Numerics::bf16, amx}, rounding{Numerics::bf16, amx, Int8Rows::few}, wide{Numerics::f32, {.avx512 = true}},
      int8_vnni{Numerics::bf16, {.avx512_vnni = true, .avx512_bf16 = true}, Int8Rows::all},
      int8_tiles{Numerics::bf16, {.avx512_vnni = true, .avx512_bf16 = true, .amx_bf16 = true, .amx_int8 = true}, Int8Rows::all},
      int8_avx2{Numerics::f32, {.avx2 = true, .avx_vnni = true}, Int8Rows::all};
  const struct {
    const LinearHost& host;
    int32_t rows;
    WeightType weight;
    bool full_precision;
    const char* text;
  } rows[] = {
      {f32, 1, WeightType::bf16, false, "gemv 1"},
      {f32, 16, WeightType::bf16, false, "gemv 16"},
      {f32, 17, WeightType::bf16, false, "f32 17"},
      {f32, 17, WeightType::bf16, true, "gemv 16, gemv 1"},
      {plain, 16, WeightType::bf16, false, "gemv 16"},
      {plain, 100, WeightType::bf16, false, "f32 100"},
      {vectors, 5, WeightType::bf16, false, "gemv 5"},
      {vectors, 17, WeightType::bf16, false, "library 16, gemv 1"},
      {vectors, 512, WeightType::f16, false, "library 512"},
      {tiles, 4, WeightType::bf16, false, "gemv 4"},
      {tiles, 5, WeightType::bf16, false, "amx 5"},
      {tiles, 5, WeightType::f16, false, "gemv 5"},
      {tiles, 16, WeightType::bf16, false, "amx 16"},
      {tiles, 17, WeightType::bf16, false, "amx 16, gemv 1"},
      {tiles, 32, WeightType::f32, false, "library 32"},
      {tiles, 51, WeightType::bf16, false, "library 32, amx 16, gemv 3"},
      {tiles, 51, WeightType::f32, false, "library 32, gemv 16, gemv 3"},
      {tiles, 20, WeightType::bf16, true, "gemv 16, gemv 4"},
      {tiles, 5, WeightType::q4_k, false, "gemv 5"},
      {rounding, 1, WeightType::bf16, false, "gemv 1"},
      {rounding, 1, WeightType::q4_k, false, "quant 1"},
      {rounding, 16, WeightType::int4, false, "quant 16"},
      {rounding, 16, WeightType::fp8_e4m3, false, "gemv 16"},
      {wide, 16, WeightType::fp8_e4m3, false, "fp8 16"},
      {rounding, 33, WeightType::q8_0, false, "library 32, gemv 1"},
      {int8_vnni, 16, WeightType::q8_0, false, "quant 16"},
      {int8_vnni, 17, WeightType::q8_0, false, "int8 17"},
      {int8_vnni, 17, WeightType::bf16, false, "library 16, gemv 1"},
      {int8_tiles, 16, WeightType::q4_k, false, "quant 16"},
      {int8_tiles, 17, WeightType::q4_k, false, "int8_amx 17"},
      {int8_tiles, 17, WeightType::q6_k, false, "int8 17"},
      {int8_tiles, 40, WeightType::fp8_e4m3, false, "library 32, gemv 8"},
      {int8_avx2, 20, WeightType::q4_k, false, "quant 16, quant 4"},
  };
  for (const auto& row : rows)
    EXPECT_EQ(describe(row.host, row.rows, row.weight, row.full_precision), row.text) << row.rows << " rows";
}

}  // namespace
}  // namespace fovea::cpu
