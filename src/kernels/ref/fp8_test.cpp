#include "kernels/ref/fp8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/common/convert.h"
#include "kernels/common/dequantize.h"
#include "kernels/quant_cases.h"
#include "kernels/ref/dense_math.h"

namespace fovea {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

struct Rounded {
  Rounded(const std::vector<float>& x, int32_t rows, int32_t group) : codes(x.size()) {
    const auto k = static_cast<int32_t>(x.size()) / rows;
    scales.resize(static_cast<size_t>((k + group - 1) / group * rows));
    ref::round_rows_to_e4m3(x.data(), rows, k, group, codes.data(), scales.data());
  }
  std::vector<uint8_t> codes;
  std::vector<float> scales;
};

TEST(RefFp8Rows, TheLargestBecomesTheLargestCodeAndTiesGoToEven) {
  const Rounded r({-896, 448, 2.125f, 2.375f, 0.0f, -0.0f}, 1, 6);
  EXPECT_EQ(r.scales, std::vector<float>{2.0f});
  // 1.0625 and 1.1875 lie halfway between eighths
  EXPECT_EQ(r.codes, (std::vector<uint8_t>{0xfe, f32_to_fp8_e4m3(224), f32_to_fp8_e4m3(1.0f), f32_to_fp8_e4m3(1.25f), 0x00, 0x80}));
}

TEST(RefFp8Rows, EachGroupOfEachRowHasItsScale) {
  const Rounded r({448, 1, 896, 2, 0, 0, 4480, 3, 448, 448}, 2, 2);  // rows of 5: groups of 2, 2 and 1
  EXPECT_EQ(r.scales, (std::vector<float>{1, 10, 2, 1, 0x1p-126f, 1}));
  EXPECT_EQ(r.codes[1], f32_to_fp8_e4m3(1));
  EXPECT_EQ(r.codes[3], f32_to_fp8_e4m3(1));
}

TEST(RefFp8Rows, WhatHasNoOrdinaryScale) {
  const float tiny = std::numeric_limits<float>::denorm_min(), huge = std::numeric_limits<float>::max();
  const Rounded r({0, 0, tiny, -tiny, huge, 1, kNan, 448, kInfinity, 1, kNan, kNan}, 6, 2);
  EXPECT_EQ(r.scales, (std::vector<float>{0x1p-126f, 0x1p-126f, huge / 448, 1, kInfinity, 0x1p-126f}));
  EXPECT_EQ(r.codes, (std::vector<uint8_t>{0, 0, 0, 0x80, 0x7e, 0, 0x7f, 0x7e, 0x7f, 0, 0x7f, 0x7f}));
}

// A normal e4m3 number is off by 2^-4 of itself at most, a small one by 2^-10 of the scale.
TEST(RefLinearFp8, IsNearTheExactProduct) {
  constexpr int32_t kRows = 3, kDepth = 320;
  for (const int32_t group : {kDepth, 128}) {
    const testing::MixedMatrix m(WeightType::fp8_e4m3, 7, kDepth, group, 4);
    std::vector<float> x(kRows * kDepth), exact(kRows * 7), got(kRows * 7), bias = {1, 2, 3, 4, 5, 6, 7};
    for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i)) * (i % 5 == 0 ? 40.0f : 1.0f);
    const Rounded rounded(x, kRows, group);
    const auto run = [&](auto&& linear, std::vector<float>& out) {
      const LinearWeight w = {m.view(), bias.data(), out.data()};
      linear({x.data(), kRows, kDepth, &w, 1});
    };
    run([](const LinearParams& p) { ref::linear(p); }, exact);
    run([](const LinearParams& p) { ref::linear_fp8(p); }, got);
    std::vector<float> w(kDepth);
    bool differs = false;
    for (int64_t n = 0; n < 7; ++n) {
      dequantize_row(m.view(), n, w.data());
      for (int64_t r = 0; r < kRows; ++r) {
        double bound = 1e-5;
        for (int64_t i = 0; i < kDepth; ++i)
          bound += std::fabs(w[static_cast<size_t>(i)]) * (0x1p-4 * std::fabs(x[static_cast<size_t>(r * kDepth + i)]) +
                                                           0x1p-10 * rounded.scales[static_cast<size_t>(i / group * kRows + r)]);
        const float error = std::fabs(got[static_cast<size_t>(r * 7 + n)] - exact[static_cast<size_t>(r * 7 + n)]);
        EXPECT_LE(error, bound) << r << ", " << n;
        differs = differs || error > 1e-3f;
      }
    }
    EXPECT_TRUE(differs) << "nothing was rounded";
  }
}

}  // namespace
}  // namespace fovea
