#include "kernels/cpu/quant/unpack.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/common/convert.h"
#include "kernels/common/dequantize.h"
#include "kernels/common/random_weights.h"
#include "kernels/cpu/quant/interleave.h"

namespace fovea::cpu {
namespace {

class UnpackTest : public ::testing::TestWithParam<int> {};

// Columns: whole pieces and a part of one, where the type has such rows.
TEST_P(UnpackTest, GivesTheFloatsOfDequantizeOnEveryTarget) {
  const auto type = static_cast<WeightType>(GetParam());
  const WeightFormat& format = weight_format(type);
  const int64_t cols = format.block == 256 ? 1536 : format.block == 32 ? 1376 : 1365;
  RandomMatrix m(type, 3, cols, 96, 7);
  for (size_t i = 0; i < m.scales.size(); ++i) m.scales[i] += static_cast<uint32_t>(i) << 12;  // each group its own
  std::vector<float> expected(cols), got(cols);
  std::vector<uint16_t> rounded(2 * cols);
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().DeInit();
    for (int64_t row = 0; row < 3; ++row) {
      dequantize_row(m.view(), row, expected.data());
      unpack_f32(m.view(), row, 0, cols, got.data());
      ASSERT_EQ(std::memcmp(got.data(), expected.data(), cols * sizeof(float)), 0) << hwy::TargetName(target);
    }
    const int64_t begin = std::max(format.block, 32);
    unpack_f32(m.view(), 2, begin, cols - begin, got.data());
    ASSERT_EQ(std::memcmp(got.data(), expected.data() + begin, (cols - begin) * sizeof(float)), 0);
    unpack_bf16(m.view(), 1, 2, rounded.data());
    for (int64_t i = 0; i < cols; ++i) ASSERT_EQ(rounded[cols + i], f32_to_bf16(expected[i])) << i;
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().DeInit();
  }
}

TEST_P(UnpackTest, FindsRowsThatAreInterleaved) {
  const auto type = static_cast<WeightType>(GetParam());
  const RandomMatrix m(type, 32, 1536, 96, 7);
  WeightView w = m.view();
  if (!gains_interleaved(w, {.avx512_vnni = true})) GTEST_SKIP() << "stays as files have it";
  std::vector<uint8_t> together(m.data.size());
  interleave(w, together.data());
  EXPECT_NE(together, m.data);
  w.data = together.data();
  w.interleaved = true;
  std::vector<float> expected(m.cols), got(m.cols);
  for (int64_t row = 0; row < m.rows; ++row) {
    dequantize_row(m.view(), row, expected.data());
    unpack_f32(w, row, 0, m.cols, got.data());
    ASSERT_EQ(got, expected) << row;
    if (row < 16) continue;
    unpack_f32(w.some_rows(16, 16), row - 16, 512, 512, got.data());
    ASSERT_TRUE(std::equal(got.begin(), got.begin() + 512, expected.begin() + 512)) << row;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, UnpackTest, ::testing::Range(static_cast<int>(WeightType::q8_0), kWeightTypes),
                         [](const auto& info) { return std::string(weight_type_name(static_cast<WeightType>(info.param))); });

}  // namespace
}  // namespace fovea::cpu
