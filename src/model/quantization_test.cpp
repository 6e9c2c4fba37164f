#include "model/quantization.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "kernels/common/dequantize.h"
#include "model/json_reader.h"
#include "model/model_files_test_util.h"

namespace fovea {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRows = 16, kCols = 192;  // as tools/make_quantised_goldens.py has them

std::string golden(const std::string& name) { return std::string(FOVEA_SOURCE_DIR) + "/tests/data/quantised/" + name; }

Result<QuantizationConfig> parse(const nlohmann::json& quantization) {
  const nlohmann::json config = {{"quantization_config", quantization}};
  return parse_quantization(ConfigFields(config, "config.json"));
}

// The matrix "m.weight" of a directory with one file.
struct Loaded {
  Loaded(const std::string& dir, const QuantizationConfig& config, int64_t rows = kRows, int64_t cols = kCols) {
    auto opened = open_tensors(dir);
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    source = std::move(opened).value();
    ListedWeight listed{.name = "m.weight", .rows = rows, .cols = cols, .matrix = &w};
    result = load_quantised(*source, config, listed, &memory);
  }
  std::unique_ptr<TensorSource> source;
  QuantisedMemory memory;
  WeightView w;
  Result<bool> result = false;
};

struct Case {
  const char* name;
  WeightType type;
  int64_t groups;
};

class QuantisedCheckpointTest : public ::testing::TestWithParam<Case> {};

TEST_P(QuantisedCheckpointTest, StandsForTheGoldenMatrix) {
  const std::string name = GetParam().name;
  const TempDir dir;
  std::filesystem::copy_file(golden(name + ".safetensors"), dir.file("model.safetensors"));
  const auto config = parse(*parse_json_object(*read_file(golden(name + ".json")), name));
  ASSERT_TRUE(config.ok()) << config.status().message();
  const Loaded m(dir.path(), *config);
  ASSERT_TRUE(m.result.ok()) << m.result.status().message();
  EXPECT_TRUE(*m.result);
  EXPECT_EQ(m.w.type, GetParam().type);
  EXPECT_EQ(m.w.scales_per_row(), GetParam().groups);
  const std::string expected = *read_file(golden(name + ".floats"));
  ASSERT_EQ(expected.size(), kRows * kCols * sizeof(float));
  std::vector<float> row(kCols);
  for (int64_t i = 0; i < kRows; ++i) {
    dequantize_row(m.w, i, row.data());
    EXPECT_EQ(std::memcmp(row.data(), expected.data() + i * kCols * sizeof(float), kCols * sizeof(float)), 0) << "row " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, QuantisedCheckpointTest,
                         ::testing::Values(Case{"fp8_tensor", WeightType::fp8_e4m3, 1}, Case{"fp8_block", WeightType::fp8_e4m3, 3},
                                           Case{"compressed_fp8", WeightType::fp8_e4m3, 1},
                                           Case{"compressed_int8", WeightType::int8, 1},
                                           Case{"compressed_packed8", WeightType::int8, 1}, Case{"gptq", WeightType::int4, 3},
                                           Case{"gptq_act_order", WeightType::f16, 0}, Case{"gptq_v2", WeightType::int4, 1},
                                           Case{"awq", WeightType::int4, 6}, Case{"compressed_int4", WeightType::int4, 3},
                                           Case{"compressed_int4_zeros", WeightType::int4, 3}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(QuantizationConfigTest, RefusesWhatIsNotKnownByName) {
  const auto refused = [](const nlohmann::json& quantization, const char* why) {
    const auto config = parse(quantization);
    ASSERT_FALSE(config.ok());
    EXPECT_THAT(config.status().message(), HasSubstr(why));
  };
  refused({{"quant_method", "bitsandbytes"}}, "quantization_config: quant_method \"bitsandbytes\" is not supported");
  refused({{"quant_method", "fp8"}, {"fmt", "e5m2"}}, "fmt \"e5m2\"");
  refused({{"quant_method", "fp8"}, {"weight_block_size", {128}}}, "weight_block_size");
  refused({{"quant_method", "fp8"}, {"weight_block_size", {128, 100}}}, "weight_block_size");
  refused({{"quant_method", "gptq"}, {"bits", 8}, {"group_size", 128}}, "bits 8");
  refused({{"quant_method", "gptq"}, {"bits", 4}}, "group_size");
  refused({{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 40}}, "group_size 40");
  refused({{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 128}, {"checkpoint_format", "marlin"}}, "\"marlin\"");
  refused({{"quant_method", "awq"}, {"bits", 4}, {"group_size", 128}, {"version", "gemv"}}, "version \"gemv\"");
  refused({{"quant_method", "compressed-tensors"}, {"format", "marlin-24"}}, "format \"marlin-24\"");
  refused("fp8", "quantization_config");
}

TEST(QuantisedTensorsTest, RefuseWhatDoesNotFit) {
  const TempDir dir;
  std::filesystem::copy_file(golden("awq.safetensors"), dir.file("model.safetensors"));
  const auto config = parse({{"quant_method", "awq"}, {"bits", 4}, {"group_size", 32}});
  ASSERT_TRUE(config.ok());
  EXPECT_THAT(Loaded(dir.path(), *config, kRows, 224).result.status().message(), HasSubstr("m.qweight\": shape [192, 2]"));
  const auto other = parse({{"quant_method", "awq"}, {"bits", 4}, {"group_size", 64}});
  EXPECT_THAT(Loaded(dir.path(), *other).result.status().message(), HasSubstr("m.qzeros\": shape [6, 2]"));
}

TEST(QuantisedTensorsTest, LeaveAloneWhatWasNotConverted) {
  const TempDir dir;
  dir.write("model.safetensors",
            safetensors_bytes(R"({"m.weight":{"dtype":"F32","shape":[1,32],"data_offsets":[0,128]}})", std::string(128, '\0')));
  for (const char* method : {"fp8", "awq"}) {
    const auto config = parse({{"quant_method", method}, {"bits", 4}, {"group_size", 32}});
    const Loaded m(dir.path(), *config, 1, 32);
    ASSERT_TRUE(m.result.ok());
    EXPECT_FALSE(*m.result);
  }
}

}  // namespace
}  // namespace fovea
