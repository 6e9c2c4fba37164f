#include "kernels/cpu/linear/linear_choice.h"

#include <gtest/gtest.h>

namespace fovea::cpu {
namespace {

TEST(LinearChoice, EqualsTheTable) {
  const CpuFeatures none, avx512{.avx512_bf16 = true}, amx{.avx512_bf16 = true, .amx_bf16 = true};
  const LinearHost f32{Numerics::f32, amx}, plain{Numerics::bf16, none}, vectors{Numerics::bf16, avx512},
      tiles{Numerics::bf16, amx};
  const struct {
    const LinearHost& host;
    int32_t rows;
    DType weight;
    bool full_precision;
    const char* text;
  } rows[] = {
      {f32, 1, DType::bf16, false, "gemv 1"},
      {f32, 16, DType::bf16, false, "gemv 16"},
      {f32, 17, DType::bf16, false, "f32 17"},
      {f32, 17, DType::bf16, true, "gemv 16, gemv 1"},
      {plain, 16, DType::bf16, false, "gemv 16"},
      {plain, 100, DType::bf16, false, "f32 100"},
      {vectors, 5, DType::bf16, false, "gemv 5"},
      {vectors, 17, DType::bf16, false, "library 16, gemv 1"},
      {vectors, 512, DType::f16, false, "library 512"},
      {tiles, 4, DType::bf16, false, "gemv 4"},
      {tiles, 5, DType::bf16, false, "amx 5"},
      {tiles, 5, DType::f16, false, "gemv 5"},
      {tiles, 16, DType::bf16, false, "amx 16"},
      {tiles, 17, DType::bf16, false, "amx 16, gemv 1"},
      {tiles, 32, DType::f32, false, "library 32"},
      {tiles, 51, DType::bf16, false, "library 32, amx 16, gemv 3"},
      {tiles, 51, DType::f32, false, "library 32, gemv 16, gemv 3"},
      {tiles, 20, DType::bf16, true, "gemv 16, gemv 4"},
  };
  for (const auto& row : rows)
    EXPECT_EQ(describe(row.host, row.rows, row.weight, row.full_precision), row.text) << row.rows << " rows";
}

}  // namespace
}  // namespace fovea::cpu
