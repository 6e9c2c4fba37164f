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

INSTANTIATE_TEST_SUITE_P(Types, UnpackTest, ::testing::Range(static_cast<int>(WeightType::q8_0), kWeightTypes),
                         [](const auto& info) { return std::string(weight_type_name(static_cast<WeightType>(info.param))); });

}  // namespace
}  // namespace fovea::cpu
