#include "kernels/ref/dense_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/common/convert.h"

namespace fovea {
namespace {

TEST(RefEmbed, TakesRowsInEveryDtype) {
  const std::vector<float> table = {1, 2, 3, 4, -5, 6};
  const int32_t ids[] = {2, 0, 2};
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    std::vector<uint8_t> bytes(table.size() * 4);
    for (size_t i = 0; i < table.size(); ++i) store_f32(bytes.data(), dtype, static_cast<int64_t>(i), table[i]);
    std::vector<float> out(6);
    ref::embed({weight_view(bytes.data(), dtype, 3, 2), ids, out.data(), 3, 2});
    EXPECT_EQ(out, (std::vector<float>{-5, 6, 1, 2, -5, 6}));
  }
}

TEST(RefRmsNorm, NormalisesAddsAndCanOnlyAdd) {
  std::vector<float> x = {3, 4, 0, 0};
  const std::vector<float> add = {0, 0, 6, 8}, weight = {1, 2};
  std::vector<float> out(4);
  ref::rms_norm({x.data(), nullptr, weight.data(), out.data(), 2, 2, 0.0f});
  EXPECT_FLOAT_EQ(out[0], 3 / std::sqrt(12.5f));
  EXPECT_FLOAT_EQ(out[1], 8 / std::sqrt(12.5f));
  EXPECT_EQ(x, (std::vector<float>{3, 4, 0, 0}));
  ref::rms_norm({x.data(), add.data(), weight.data(), out.data(), 2, 2, 50.0f});
  EXPECT_EQ(x, (std::vector<float>{3, 4, 6, 8}));
  EXPECT_FLOAT_EQ(out[2], 6 / 10.0f);
  EXPECT_FLOAT_EQ(out[3], 16 / 10.0f);
  ref::rms_norm({x.data(), add.data(), nullptr, nullptr, 2, 2, 0.0f});
  EXPECT_EQ(x, (std::vector<float>{3, 4, 12, 16}));
}

TEST(RefSiluMul, IsGateTimesSigmoidTimesUp) {
  const std::vector<float> gate = {0, 1, -1, 1000, -1000}, up = {5, 2, 3, 2, 2};
  std::vector<float> out(5);
  ref::silu_mul({gate.data(), up.data(), out.data(), 1, 5});
  EXPECT_EQ(out[0], 0.0f);
  EXPECT_FLOAT_EQ(out[1], 2 * 0.7310585786f);
  EXPECT_FLOAT_EQ(out[2], -3 * 0.2689414214f);
  EXPECT_EQ(out[3], 2000.0f);
  EXPECT_EQ(out[4], 0.0f);
}

TEST(RefLinear, SeveralWeightsBiasAndBf16Activations) {
  const std::vector<float> x = {1, 2, 3, 1.0f / 3, 0, 0};  // [2, 3]
  const std::vector<float> w1 = {1, 0, -1, 2, 2, 2};       // [2, 3]
  const std::vector<uint16_t> w2 = {f32_to_bf16(0.5f), f32_to_bf16(0.5f), f32_to_bf16(0.0f)};
  const std::vector<float> bias = {10, 20};
  std::vector<float> out1(4), out2(2);
  const LinearWeight weights[] = {{weight_view(w1.data(), DType::f32, 2, 3), bias.data(), out1.data()},
                                  {weight_view(w2.data(), DType::bf16, 1, 3), nullptr, out2.data()}};
  const LinearParams p{x.data(), 2, 3, weights, 2};
  ref::linear(p);
  EXPECT_EQ(out1, (std::vector<float>{8, 32, 10 + x[3], static_cast<float>(20.0 + 2.0 * x[3])}));
  EXPECT_EQ(out2, (std::vector<float>{1.5f, x[3] / 2}));
  ref::linear(p, Numerics::bf16);
  EXPECT_EQ(out2, (std::vector<float>{1.5f, bf16_to_f32(f32_to_bf16(x[3])) / 2}));
}

}  // namespace
}  // namespace fovea
