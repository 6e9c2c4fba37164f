// How quant_gemm cuts; what it computes, the tests of linear layers hold against dequantised weights.
#include "kernels/cpu/quant/quant_gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/common/random_weights.h"
#include "kernels/cpu/quant/quant_gemm_amx_emulated.h"

namespace fovea::cpu {
namespace {

class QuantGemmTest : public ::testing::TestWithParam<int> {};
using Kernel = void (*)(const QuantGemmSlice&, QuantPanel*);

struct Problem {
  Problem(WeightType type, int64_t rows, int64_t outputs, int64_t cols)
      : m(type, outputs, cols, 32, 5), rows(rows), x(static_cast<size_t>(rows * cols)), bias(static_cast<size_t>(outputs)) {
    for (size_t i = 0; i < m.scales.size(); ++i) m.scales[i] += static_cast<uint32_t>(i % 64) << 15;  // each group its own
    std::mt19937 random(9);
    std::normal_distribution<float> normal;
    for (float& v : x) v = normal(random);
    for (float& v : bias) v = normal(random);
  }

  // In slices of `width` rows of W; what is behind the last row of x is NaN.
  std::vector<float> product(Kernel kernel, XOrder order, int64_t width) const {
    std::vector<QuantisedX> packed(static_cast<size_t>(quant_pieces(m.cols) * rows));
    quantise_x(x.data(), rows, m.cols, 0, rows, order, packed.data());
    std::vector<QuantPanel> scratch(kQuantScratchPanels);
    std::vector<float> out(static_cast<size_t>((rows + 1) * m.rows), NAN);
    for (int64_t n = 0; n < m.rows; n += width) {
      kernel({.packed = packed.data(),
              .rows = rows,
              .w = m.view().some_rows(n, std::min(width, m.rows - n)),
              .bias = bias.data() + n,
              .out = out.data() + n,
              .out_stride = m.rows},
             scratch.data());
    }
    for (int64_t j = 0; j < m.rows; ++j) EXPECT_TRUE(std::isnan(out[static_cast<size_t>(rows * m.rows + j)])) << "wrote beyond";
    out.resize(static_cast<size_t>(rows * m.rows));
    return out;
  }

  RandomMatrix m;
  int64_t rows;
  std::vector<float> x, bias;
};

// More columns than are unpacked at once, and rows of W that fill the last panel of a slice in part.
TEST_P(QuantGemmTest, SlicesOfAnyWidthGiveTheSameBits) {
  const auto type = static_cast<WeightType>(GetParam());
  const Problem p(type, 13, 119, 2304);
  const std::vector<float> whole = p.product(&quant_gemm, XOrder::biased, kQuantSliceRows);
  for (const float v : whole) ASSERT_TRUE(std::isfinite(v));
  for (const int64_t width : {int64_t{1}, kQuantPanelRows, int64_t{50}}) {
    EXPECT_EQ(p.product(&quant_gemm, XOrder::biased, width), whole) << width;
  }
}

// Both sum the same integers, and scale them alike.
TEST_P(QuantGemmTest, AmxHasTheBitsOfVnni) {
  const auto type = static_cast<WeightType>(GetParam());
  const int64_t block = weight_format(type).block;
  for (const int64_t rows : {12, 13, 17, 24, 25, 40}) {
    for (const int64_t outputs : {1, 31, 33, 119}) {
      // A part of a piece, more than a piece, more than is unpacked at once.
      for (const int64_t cols : {block == 256 ? 256 : block == 32 ? 32 : 31, block == 256 ? 512 : block == 32 ? 288 : 273, 2304}) {
        if (cols == 2304 && rows != 25) continue;
        const Problem p(type, rows, outputs, cols);
        const std::vector<float> vnni = p.product(&quant_gemm, XOrder::biased, 64);
        EXPECT_EQ(p.product(&quant_gemm_amx_emulated, XOrder::natural, 64), vnni) << rows << " rows, " << outputs << " x " << cols;
        if (!cpu_features().amx_int8) continue;
        EXPECT_EQ(p.product(&quant_gemm_amx, XOrder::natural, 64), vnni)
            << "hardware, " << rows << " rows, " << outputs << " x " << cols;
      }
    }
  }
}

// Those that the kernels take; none where the CPU has no instructions for them.
std::vector<int> types() {
  std::vector<int> all;
  for (int i = 0; i < kWeightTypes; ++i) {
    if (quant_gemv_takes(static_cast<WeightType>(i)) && cpu_features().avx512_vnni) all.push_back(i);
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Types, QuantGemmTest, ::testing::ValuesIn(types()),
                         [](const auto& info) { return std::string(weight_type_name(static_cast<WeightType>(info.param))); });

}  // namespace
}  // namespace fovea::cpu
