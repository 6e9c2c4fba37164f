// How quant_gemm cuts; what it computes, the tests of linear layers hold against dequantised weights.
#include "kernels/cpu/quant/quant_gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/common/random_weights.h"

namespace fovea::cpu {
namespace {

class QuantGemmTest : public ::testing::TestWithParam<int> {};

// More columns than are unpacked at once, and rows of W that fill the last panel of a slice in part.
TEST_P(QuantGemmTest, SlicesOfAnyWidthGiveTheSameBits) {
  const auto type = static_cast<WeightType>(GetParam());
  if (!quant_gemv_takes(type) || !cpu_features().avx512_vnni) GTEST_SKIP() << "not this type, or not on this CPU";
  constexpr int64_t kRows = 13, kOutputs = 119;
  const RandomMatrix m(type, kOutputs, 2304, 32, 5);
  std::vector<float> x(static_cast<size_t>(kRows * m.cols)), bias(kOutputs);
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  for (float& v : x) v = normal(random);
  for (float& v : bias) v = normal(random);
  std::vector<QuantisedX> packed(static_cast<size_t>(quant_pieces(m.cols) * kRows));
  quantise_x(x.data(), kRows, m.cols, 0, kRows, XOrder::biased, packed.data());
  std::vector<QuantPanel> scratch(kQuantScratchPanels);
  const auto product = [&](int64_t width) {
    std::vector<float> out(kRows * kOutputs, NAN);
    for (int64_t n = 0; n < kOutputs; n += width) {
      quant_gemm({.packed = packed.data(),
                  .rows = kRows,
                  .w = m.view().some_rows(n, std::min(width, kOutputs - n)),
                  .bias = bias.data() + n,
                  .out = out.data() + n,
                  .out_stride = kOutputs},
                 scratch.data());
    }
    return out;
  };
  const std::vector<float> whole = product(kQuantSliceRows);
  for (const float v : whole) ASSERT_TRUE(std::isfinite(v));
  EXPECT_EQ(product(kQuantPanelRows), whole);
  EXPECT_EQ(product(1), whole);
  EXPECT_EQ(product(50), whole);
}

INSTANTIATE_TEST_SUITE_P(Types, QuantGemmTest, ::testing::Range(static_cast<int>(WeightType::q8_0), kWeightTypes),
                         [](const auto& info) { return std::string(weight_type_name(static_cast<WeightType>(info.param))); });

}  // namespace
}  // namespace fovea::cpu
