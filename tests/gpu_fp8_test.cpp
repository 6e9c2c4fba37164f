// --numerics fp8 on a GPU: prompts are rounded to e4m3 where weights are, answers stay near those of bf16, and cached blocks are apart.
#include "engine_test_util.h"

#include "device/gpu_test_util.h"
#include "kernels/common/convert.h"
#include "model/model_files_test_util.h"
#include "model/tensor_source.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

namespace fovea::testing {
namespace {

class GpuFp8 : public WithGpu<::testing::Test> {
 protected:
  static EngineOptions options(const std::string& model, NumericsChoice numerics) {
    EngineOptions o = exact_options(model);
    o.device = "cuda";
    o.numerics = numerics;
    o.kv_cache_dtype = DType::bf16;
    return o;
  }
  static EngineOptions random_weights(NumericsChoice numerics) {
    EngineOptions o = options(tiny_gqa(), numerics);
    o.dummy_weights = true;
    o.dummy_weight_type = WeightType::fp8_e4m3;
    o.max_model_len = 1024;
    return o;
  }
};

// What files of fp8 hold of a matrix [rows, cols]: e4m3 numbers, and a scale for each row or for each block of 128 x 128.
void append_fp8(const TensorInfo& t, bool blocks, std::string* data, std::string* scales) {
  const int64_t rows = t.shape[0], cols = t.shape[1], height = blocks ? 128 : 1, width = blocks ? 128 : cols;
  std::string codes(static_cast<size_t>(rows * cols), '\0');
  for (int64_t top = 0; top < rows; top += height) {
    for (int64_t left = 0; left < cols; left += width) {
      const auto each = [&](auto&& f) {
        for (int64_t r = top; r < std::min(rows, top + height); ++r) {
          for (int64_t c = left; c < std::min(cols, left + width); ++c) f(r * cols + c, load_as_f32(t.data, t.dtype, r * cols + c));
        }
      };
      float amax = 0.0f;
      each([&](int64_t, float x) { amax = std::max(amax, std::fabs(x)); });
      const float scale = std::max(amax / 448.0f, 0x1p-126f);
      each([&](int64_t i, float x) { codes[static_cast<size_t>(i)] = static_cast<char>(f32_to_fp8_e4m3(x / scale)); });
      scales->append(reinterpret_cast<const char*>(&scale), sizeof scale);
    }
  }
  *data += codes;
}

// models/tiny-gqa with the matrices of its layers in fp8.
void write_fp8_model(const TempDir& dir, bool blocks) {
  for (const auto& entry : std::filesystem::directory_iterator(tiny_gqa())) {
    if (entry.path().extension() != ".safetensors") std::filesystem::copy(entry.path(), dir.file(entry.path().filename()));
  }
  nlohmann::json config = read_json(tiny_gqa() + "/config.json"), header;
  config["quantization_config"] = {{"quant_method", "fp8"}, {"fmt", "e4m3"}, {"activation_scheme", "dynamic"}};
  if (blocks) config["quantization_config"]["weight_block_size"] = {128, 128};
  dir.write("config.json", config.dump());
  const auto source = open_tensors(tiny_gqa());
  ASSERT_TRUE(source.ok()) << source.status().message();
  std::string data;
  const auto list = [&](const std::string& name, const char* dtype, const std::vector<int64_t>& shape, size_t begin) {
    header[name] = {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {begin, data.size()}}};
  };
  for (const std::string& name : (*source)->names()) {
    const TensorInfo& t = *(*source)->find(name);
    const size_t begin = data.size();
    if (t.shape.size() == 2 && name.find(".layers.") != std::string::npos) {
      std::string scales;
      append_fp8(t, blocks, &data, &scales);
      list(name, "F8_E4M3", t.shape, begin);
      const size_t scales_begin = data.size();
      data += scales;
      const std::vector<int64_t> of_blocks = {(t.shape[0] + 127) / 128, (t.shape[1] + 127) / 128}, of_rows = {t.shape[0], 1};
      list(name + (blocks ? "_scale_inv" : "_scale"), "F32", blocks ? of_blocks : of_rows, scales_begin);
    } else {
      data.append(static_cast<const char*>(t.data), t.bytes);
      list(name, t.stored_dtype.c_str(), t.shape, begin);
    }
  }
  dir.write("model.safetensors", safetensors_bytes(header.dump(), data));
}

Result1 answer(const EngineOptions& o, const Request& r) {
  const auto engine = make_engine(o);
  return engine ? run_one(*engine, r) : Result1();
}

// Random weights are the worst case: nothing of a model's redundancy makes up for what is rounded.
TEST_F(GpuFp8, LogitsStayNearThoseOfBf16) {
  const Request r = greedy(random_prompt(3, 600, 4096), 4);
  const Result1 bf16 = answer(random_weights(NumericsChoice::bf16), r), fp8 = answer(random_weights(NumericsChoice::fp8), r);
  ASSERT_FALSE(bf16.logits.empty() || fp8.logits.empty());
  const std::vector<float>&a = bf16.logits[0], &b = fp8.logits[0];
  double squares = 0, differences = 0;
  for (size_t i = 0; i < a.size(); ++i) squares += a[i] * a[i], differences += (a[i] - b[i]) * (a[i] - b[i]);
  const double relative = std::sqrt(differences / squares);
  RecordProperty("relative_difference", std::to_string(relative));
  EXPECT_LT(relative, 0.1);
  const bool hopper = device_->description().find("NVIDIA H") != std::string::npos;
  EXPECT_GE(relative, hopper ? 1e-3 : 0.0) << "nothing was rounded to fp8";
}

// A trained model in fp8, its scales for rows and for blocks: the ids that transformers gave for the model in bf16.
TEST_F(GpuFp8, ATrainedModelGivesTheGoldenIds) {
  const auto golden = read_json(tiny_gqa() + "/golden.json");
  const auto want = golden.at("generated_ids").get<std::vector<TokenId>>();
  const Request r = greedy(golden.at("prompt_ids").get<std::vector<TokenId>>(), static_cast<int32_t>(want.size()));
  for (const bool blocks : {false, true}) {
    const TempDir dir;
    write_fp8_model(dir, blocks);
    EXPECT_EQ(answer(options(dir.path(), NumericsChoice::fp8), r).tokens, want) << (blocks ? "by blocks" : "by rows");
  }
}

TEST_F(GpuFp8, CachedBlocksAreNotThoseOfBf16) {
  std::set<std::string> keys;
  for (const NumericsChoice numerics : {NumericsChoice::bf16, NumericsChoice::automatic, NumericsChoice::fp8}) {
    const auto engine = make_engine(random_weights(numerics));
    ASSERT_TRUE(engine);
    Request r = greedy(random_prompt(3, 40, engine->model().vocab_size), 0);
    r.hold = true;
    const RequestId id = engine->submit(r).value();
    run_all(*engine);
    keys.insert(engine->request_state(id)->block_hashes.at(0));
  }
  EXPECT_EQ(keys.size(), 2u);
}

}  // namespace
}  // namespace fovea::testing
