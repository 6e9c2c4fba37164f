#include "kernels/common/dequantize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "kernels/common/convert.h"

namespace fovea {
namespace {

std::vector<uint8_t> read_golden(WeightType type, const char* ending) {
  const std::string path =
      std::string(FOVEA_SOURCE_DIR) + "/tests/data/quant/" + std::string(weight_type_name(type)) + "." + ending;
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

class DequantizeTest : public ::testing::TestWithParam<int> {};

TEST_P(DequantizeTest, GivesWhatTheGgufPackageGives) {
  const auto type = static_cast<WeightType>(GetParam());
  const WeightFormat& format = weight_format(type);
  const std::vector<uint8_t> blocks = read_golden(type, "blocks"), expected = read_golden(type, "floats");
  const auto count = static_cast<int64_t>(expected.size() / sizeof(float));
  ASSERT_EQ(count, 4 * format.block);
  ASSERT_EQ(static_cast<int64_t>(blocks.size()), 4 * format.bytes);
  // As two rows of two blocks.
  const WeightView w = {blocks.data(), nullptr, type, 2, count / 2};
  EXPECT_EQ(w.bytes(), blocks.size());
  EXPECT_TRUE(check_weight(w).ok());
  std::vector<float> got(static_cast<size_t>(count));
  dequantize_row(w, 0, got.data());
  dequantize_row(w.some_rows(1, 1), 0, got.data() + w.cols);
  EXPECT_EQ(std::memcmp(got.data(), expected.data(), expected.size()), 0);
  dequantize(w, 1, format.block, format.block, got.data());  // the last block alone
  EXPECT_EQ(std::memcmp(got.data(), expected.data() + 3 * format.block * sizeof(float), format.block * sizeof(float)), 0);
}

INSTANTIATE_TEST_SUITE_P(Types, DequantizeTest,
                         ::testing::Range(static_cast<int>(WeightType::q8_0), static_cast<int>(WeightType::fp8_e4m3)),
                         [](const auto& info) { return std::string(weight_type_name(static_cast<WeightType>(info.param))); });

TEST(ScaledWeightsTest, GroupsHaveScalesOfTheirOwn) {
  const std::vector<uint8_t> bytes(2 * 40, f32_to_fp8_e4m3(1.5f));
  const float scales[] = {1.0f, 2.0f, 4.0f, -8.0f};
  WeightView w = {bytes.data(), scales, WeightType::fp8_e4m3, 2, 40, 32};
  EXPECT_EQ(w.scales_per_row(), 2);
  EXPECT_EQ(w.bytes(), 2u * 40 + 4 * 4);
  std::vector<float> out(40);
  dequantize_row(w.some_rows(1, 1), 0, out.data());
  EXPECT_EQ(out[31], 6.0f);
  EXPECT_EQ(out[32], -12.0f);
  w.type = WeightType::int8;
  dequantize(w, 0, 32, 8, out.data());
  EXPECT_EQ(out[0], 2.0f * static_cast<int8_t>(bytes[0]));
}

TEST(ScaledWeightsTest, FourBitsHaveZeros) {
  std::vector<uint8_t> bytes(2 * 32);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i);
  // One scale a row; f16 and bf16 scales are exact.
  const uint32_t scales[] = {std::bit_cast<uint32_t>(0.5f) | 8, std::bit_cast<uint32_t>(f16_to_f32(0x2e3f)) | 16};
  const WeightView w = {bytes.data(), scales, WeightType::int4, 2, 64, 64};
  ASSERT_TRUE(check_weight(w).ok());
  std::vector<float> out(64);
  dequantize_row(w, 0, out.data());
  EXPECT_EQ(out[5], 0.5f * (5 - 8));
  EXPECT_EQ(out[5 + 16], 0.5f * (0 - 8));
  EXPECT_EQ(out[32 + 5 + 16], 0.5f * (1 - 8));
  dequantize_row(w, 1, out.data());
  EXPECT_EQ(out[0], f16_to_f32(0x2e3f) * (0 - 16));
  EXPECT_EQ(out[17], f16_to_f32(0x2e3f) * (2 - 16));
}

TEST(CheckWeightTest, RefusesWhatDoesNotFit) {
  const float scale = 1;
  const auto refused = [](const WeightView& w, const char* why) {
    EXPECT_THAT(check_weight(w).message(), ::testing::HasSubstr(why));
  };
  refused({nullptr, nullptr, WeightType::q4_k, 1, 384}, "weights [1, 384] of type q4_k: rows are no multiple of its blocks of 256");
  refused({nullptr, nullptr, WeightType::int4, 1, 64, 64}, "scales are missing");
  refused({nullptr, &scale, WeightType::int4, 1, 64, 48}, "groups of 48 columns");
  refused({nullptr, &scale, WeightType::fp8_e4m3, 1, 64, 0}, "groups of 0 columns");
  EXPECT_TRUE(check_weight({nullptr, &scale, WeightType::fp8_e4m3, 1, 50, 50}).ok());
}

}  // namespace
}  // namespace fovea
