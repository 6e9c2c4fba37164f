#include "kernels/common/quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/common/dequantize.h"

namespace fovea {
namespace {

constexpr WeightType kTypes[] = {WeightType::f32,  WeightType::f16,  WeightType::bf16, WeightType::q8_0, WeightType::q4_0,
                                 WeightType::q5_0, WeightType::q4_k, WeightType::q5_k, WeightType::q6_k};

std::string read(const std::string& name) {
  std::ifstream file(std::string(FOVEA_SOURCE_DIR) + "/tests/data/quant/" + name, std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<float> golden_weights() {
  const std::string bytes = read("weights.floats");
  std::vector<float> out(bytes.size() / sizeof(float));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

std::vector<uint8_t> quantised(WeightType type, const std::vector<float>& x) {
  const WeightFormat& f = weight_format(type);
  std::vector<uint8_t> out(x.size() / static_cast<size_t>(f.block) * static_cast<size_t>(f.bytes));
  quantize(type, x.data(), static_cast<int64_t>(x.size()), out.data());
  return out;
}

std::vector<float> kept(WeightType type, const std::vector<float>& x) {
  const std::vector<uint8_t> blocks = quantised(type, x);
  const WeightView w{.data = blocks.data(), .type = type, .rows = 1, .cols = static_cast<int64_t>(x.size())};
  std::vector<float> out(x.size());
  dequantize_row(w, 0, out.data());
  return out;
}

class QuantizeTest : public ::testing::TestWithParam<WeightType> {};
INSTANTIATE_TEST_SUITE_P(Types, QuantizeTest, ::testing::ValuesIn(kTypes),
                         [](const auto& info) { return std::string(weight_type_name(info.param)); });

// llama.cpp's quantisers weigh large weights more, ours all alike: the plain error is mostly less.
TEST_P(QuantizeTest, KeepsWeightsAsWellAsLlamaCpp) {
  const auto errors = nlohmann::json::parse(read("weights.json"));
  const std::string name(weight_type_name(GetParam()));
  if (!errors.contains(name)) return;  // nothing to choose in these
  const std::vector<float> x = golden_weights(), y = kept(GetParam(), x);
  double error = 0;
  for (size_t i = 0; i < x.size(); ++i) error += std::pow(static_cast<double>(y[i]) - static_cast<double>(x[i]), 2);
  error = std::sqrt(error / static_cast<double>(x.size()));
  EXPECT_LT(error, 1.01 * errors[name].get<double>());
  EXPECT_GT(error, 0.8 * errors[name].get<double>());  // nobody is so good: the measure would be wrong
}

TEST(Quantize, Q8IsTheGgufPackages) {
  const std::vector<uint8_t> blocks = quantised(WeightType::q8_0, golden_weights());
  EXPECT_EQ(std::string(blocks.begin(), blocks.end()), read("weights.q8_0"));
}

TEST(Quantize, PlainTypesAreRounded) {
  const std::vector<float> x = golden_weights();
  EXPECT_EQ(kept(WeightType::f32, x), x);
  for (const auto& [type, bits] : {std::pair{WeightType::f16, 11}, std::pair{WeightType::bf16, 8}}) {
    const std::vector<float> y = kept(type, x);
    for (size_t i = 0; i < x.size(); ++i) ASSERT_LE(std::fabs(y[i] - x[i]), std::max(std::ldexp(std::fabs(x[i]), -bits), 0x1p-25f));
  }
}

// Blocks with little in them: of each the largest error is a part of its range, whatever the type.
TEST_P(QuantizeTest, OddBlocks) {
  const auto block = [](auto of) {
    std::vector<float> x(256);
    for (int i = 0; i < 256; ++i) x[static_cast<size_t>(i)] = of(i);
    return x;
  };
  const float large = std::min(quantize_max(GetParam()), 65504.0f);
  const std::vector<float> blocks[] = {block([](int) { return 0.0f; }),
                                       block([](int) { return 0.5f; }),
                                       block([](int) { return -0.5f; }),
                                       block([](int i) { return i == 77 ? 3.0f : 0.0f; }),
                                       block([](int i) { return i == 77 ? -3.0f : 0.0f; }),
                                       block([](int i) { return i == 77 ? -3.0f : 0.01f; }),
                                       block([](int i) { return i < 32   ? 1e-30f
                                                                : i < 64 ? 1e-40f
                                                                         : 1.0f; }),
                                       block([](int i) { return i % 2 == 0 ? 1e-30f : -1e-42f; }),
                                       block([&](int i) { return i % 2 == 0 ? large : -large; }),
                                       block([](int i) { return static_cast<float>(i % 32 - 16); }),
                                       block([](int i) { return 1.0f + static_cast<float>(i % 3); }),
                                       block([](int i) { return -1.0f - static_cast<float>(i % 3); })};
  for (const std::vector<float>& x : blocks) {
    const std::vector<float> y = kept(GetParam(), x);
    const auto [low, high] = std::minmax_element(x.begin(), x.end());
    const float range = std::max(*high, 0.0f) - std::min(*low, 0.0f);
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_TRUE(std::isfinite(y[i])) << &x - blocks;
      ASSERT_LE(std::fabs(y[i] - x[i]), range / 13 + 1e-7f) << &x - blocks << " at " << i;
    }
  }
  EXPECT_EQ(kept(GetParam(), blocks[0]), blocks[0]);
}

TEST(Quantize, KnowsWhichTypesThereAre) {
  for (const WeightType type : kTypes) EXPECT_TRUE(can_quantize(type));
  for (const WeightType type : {WeightType::q2_k, WeightType::iq4_xs, WeightType::fp8_e4m3, WeightType::int4})
    EXPECT_FALSE(can_quantize(type));
}

}  // namespace
}  // namespace fovea
