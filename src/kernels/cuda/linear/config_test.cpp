#include "kernels/cuda/linear/config.h"

#include <gtest/gtest.h>

#include <vector>

namespace fovea::cuda {
namespace {

TEST(LinearConfig, EqualsTheTable) {
  constexpr auto f32 = Numerics::f32, bf16 = Numerics::bf16;
  constexpr int64_t small = 1 << 20, large = int64_t{64} << 20;
  const struct {
    LinearShape shape;
    const char* path;
  } rows[] = {
      {{bf16, false, true, true, 1, 4096, large}, "gemv"},
      {{bf16, false, true, true, 2, 4096, large}, "skinny"},
      {{bf16, false, true, true, 8, 4096, large}, "skinny"},
      {{bf16, false, true, true, 9, 4096, large}, "library"},
      {{bf16, false, true, true, 9, 4096, small}, "skinny"},
      {{bf16, false, true, true, 16, 4096, small}, "skinny"},
      {{bf16, false, true, true, 17, 4096, small}, "library"},
      {{bf16, false, true, true, 4, 8192, small}, "library"},
      {{bf16, false, true, true, 1, 8192, small}, "gemv"},
      {{bf16, false, true, false, 4, 1024, small}, "gemv"},
      {{bf16, false, true, false, 9, 1024, small}, "library"},
      {{bf16, false, false, true, 1, 1023, small}, "library"},
      {{f32, false, true, true, 1, 4096, small}, "gemv"},
      {{f32, false, true, true, 8, 4096, small}, "gemv"},
      {{f32, false, true, true, 9, 4096, small}, "tiled"},
      {{f32, false, false, true, 1, 1023, small}, "tiled"},
      {{bf16, true, true, true, 1, 4096, small}, "tiled"},
      {{bf16, true, true, true, 100, 4096, small}, "tiled"},
      // quantised
      {{bf16, false, true, false, 1, 4096, small, true}, "few"},
      {{bf16, false, true, false, 16, 4096, small, true}, "few"},
      {{bf16, false, true, false, 17, 4096, small, true}, "unpacked"},
      {{f32, false, true, false, 5, 4096, small, true}, "few"},
      {{f32, false, true, false, 6, 4096, small, true}, "unpacked"},
      {{f32, true, true, false, 1, 4096, small, true}, "unpacked"},
      {{bf16, false, false, false, 1, 4097, small, true}, "unpacked"},
      // fp8
      {{bf16, false, true, false, 16, 4096, small, true, true}, "few"},
      {{bf16, false, true, false, 17, 4096, small, true, true}, "fp8"},
      {{bf16, true, true, false, 17, 4096, small, true, true}, "unpacked"},
      {{bf16, false, false, false, 17, 4096, small, true, true}, "unpacked"},
  };
  for (size_t i = 0; i < std::size(rows); ++i) EXPECT_EQ(to_string(choose(rows[i].shape)), rows[i].path) << "row " << i;
}

TEST(LinearConfig, AGroupIsDescribedByItsWorstMember) {
  alignas(16) static std::byte memory[64];
  std::vector<LinearWeight> weights(2);
  for (LinearWeight& w : weights) {
    w.w = weight_view(memory, DType::bf16, 3, 8);
  }
  LinearParams p;
  p.x = reinterpret_cast<const float*>(memory);
  p.rows = 5;
  p.k = 8;
  p.weights = weights.data();
  p.count = 2;
  const LinearShape s = describe(p, Numerics::bf16);
  EXPECT_TRUE(s.on_vectors && s.all_bf16);
  EXPECT_EQ(s.elements, 48);
  weights[1].w.data = memory + 2;
  EXPECT_FALSE(describe(p, Numerics::bf16).on_vectors);
  weights[1] = weights[0];
  weights[1].w.type = WeightType::f16;
  EXPECT_FALSE(describe(p, Numerics::bf16).all_bf16);
  p.as_many = true;  // with 5 rows the bits of many
  EXPECT_EQ(choose(describe(p, Numerics::f32)), LinearPath::tiled);
  EXPECT_EQ(choose(describe(p, Numerics::bf16)), LinearPath::gemv);
  p.as_many = false;
  EXPECT_EQ(choose(describe(p, Numerics::f32)), LinearPath::gemv);
  p.full_precision = true;
  EXPECT_EQ(choose(describe(p, Numerics::bf16)), LinearPath::tiled);
}

TEST(LinearConfig, Fp8TakesWeightsOfE4m3WithScalesOfOneKind) {
  alignas(16) static std::byte memory[64];
  std::vector<LinearWeight> weights(2);
  for (LinearWeight& w : weights) w.w = {memory, memory, WeightType::fp8_e4m3, 3, 256, 256};
  const LinearParams p = {reinterpret_cast<const float*>(memory), 20, 256, weights.data(), 2};
  const auto path = [&](bool fp8 = true) { return to_string(choose(describe(p, Numerics::bf16, fp8))); };
  EXPECT_EQ(path(), "fp8");
  EXPECT_EQ(path(false), "unpacked");
  weights[1].w.group = 128;  // x would be rounded twice
  EXPECT_EQ(path(), "unpacked");
  weights[0].w.group = 128;
  EXPECT_EQ(path(), "fp8");
  for (LinearWeight& w : weights) w.w.group = 64;
  EXPECT_EQ(path(), "unpacked");
  weights[0].w.group = weights[1].w.group = 256;
  weights[1].w.type = WeightType::int8;
  EXPECT_EQ(path(), "unpacked");
}

}  // namespace
}  // namespace fovea::cuda
