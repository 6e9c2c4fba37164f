// KV caches of fp8: calibrated scales, whose digest is in the keys of blocks; a pool that is smaller than the context, and prompts
// in any cut, see the same bits as one that holds it all.
#include "offload_test_util.h"

#include "store/store_test_util.h"

#include <fovea/calibrate.h>

#include <fstream>

namespace fovea::testing {
namespace {

std::string write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

// Scales in which every layer and head has its own, some of them so small that values saturate.
std::string uneven_scales(const TempDir& dir, int layers, int heads, double factor) {
  nlohmann::json k = nlohmann::json::array(), v = k;
  for (int l = 0; l < layers; ++l) {
    std::vector<double> of_k, of_v;
    for (int h = 0; h < heads; ++h) of_k.push_back(factor * (3 + l + 5 * h)), of_v.push_back(factor * (0.7 + l + 2 * h));
    k.push_back(of_k), v.push_back(of_v);
  }
  const nlohmann::json file = {{"format", "fovea kv scales"},
                               {"version", 1},
                               {"layers", layers},
                               {"kv_heads", heads},
                               {"margin", 1.0},
                               {"k_amax", k},
                               {"v_amax", v}};
  return write(dir.path() + "/scales-" + std::to_string(factor) + ".json", file.dump());
}

EngineOptions options(DType dtype, const std::string& scales) {
  EngineOptions o = exact_options(tiny_gqa());
  o.kv_cache_dtype = dtype;
  o.kv_scales = scales;
  o.max_model_len = 1024;
  o.sparse_min_context = 64;
  o.max_num_batched_tokens = 64;
  return o;
}

class Fp8Kv : public ::testing::TestWithParam<DType> {};

// Block after block, across chunks: what was read back is what was written, whichever tile of rows reads it.
TEST_P(Fp8Kv, ChunksOfAPromptChangeNothing) {
  const TempDir dir;
  EngineOptions o = options(GetParam(), uneven_scales(dir, 6, 2, 1));
  const auto prompt = random_prompt(3, 300, 4096);
  const Result1 small = run_one(*make_engine(o), greedy(prompt, 4));
  o.max_num_batched_tokens = 512;
  const Result1 whole = run_one(*make_engine(o), greedy(prompt, 4));
  EXPECT_EQ(small.tokens, whole.tokens);
  EXPECT_TRUE(small.logits == whole.logits) << "not the same bits";
}

// Scales matter, layer by layer and head by head, and fp8 with fitting ones is near float32.
TEST_P(Fp8Kv, LogitsAreNearThoseOfFloat32) {
  const TempDir dir;
  const auto prompt = random_prompt(3, 200, 4096);
  EngineOptions exact = options(GetParam(), "");
  exact.kv_cache_dtype = DType::f32;
  const Result1 want = run_one(*make_engine(exact), greedy(prompt, 1));
  KvCalibration texts;
  std::ifstream in(repo("LICENSE"));  // a text that stays as it is
  texts.texts.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  EngineOptions o = options(GetParam(), "");
  if (o.device == "fake") o.device = "cpu";
  const Result<std::string> scales = calibrate_kv(o, texts);
  ASSERT_TRUE(scales.ok()) << scales.status().message();
  const Result1 fitting = run_one(*make_engine(options(GetParam(), write(dir.path() + "/fit.json", *scales))), greedy(prompt, 1));
  const Result1 bad = run_one(*make_engine(options(GetParam(), uneven_scales(dir, 6, 2, 1e-3))), greedy(prompt, 1));
  float most = 0;
  for (float x : want.logits[0]) most = std::max(most, std::abs(x));
  EXPECT_LT(max_difference(fitting.logits[0], want.logits[0]), (GetParam() == DType::fp8_e4m3 ? 0.2f : 0.3f) * most);
  EXPECT_GT(max_difference(bad.logits[0], want.logits[0]), max_difference(fitting.logits[0], want.logits[0]));
}

TEST_P(Fp8Kv, ASmallPoolGivesTheSameBits) {
  if (test_device() != "cpu") GTEST_SKIP() << "a pool on a device has tests of its own";
  const TempDir dir;
  EngineOptions o = options(GetParam(), uneven_scales(dir, 6, 2, 1));
  o.kv_tokens = o.max_model_len = kDocument + 100;
  o.max_num_seqs = 4;
  for (const char* method : {"dense", "gsa_on_device[budget_tokens=96,codes=asymmetric,length_factor=true]"}) {
    SCOPED_TRACE(method);
    o.decode_method = method;
    const std::vector<Result1> want = ask(*make_engine(o), kDocument);
    EngineOptions small = o;
    small.kv_offload = OffloadChoice::on;
    small.kv_cache_memory_bytes = 1280 * kDocument;  // half of it
    EngineParts parts;
    parts.store = std::make_shared<LyingStore>();
    parts.poison_evicted = true;
    EngineImpl engine(small, std::move(parts));
    const Status made = engine.init();
    ASSERT_TRUE(made.ok()) << made.message();
    EXPECT_LT(engine.stats().pool_blocks, engine.stats().blocks_total);
    const std::vector<Result1> got = ask(engine, kDocument);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].tokens, want[i].tokens);
      EXPECT_TRUE(got[i].logits == want[i].logits) << "not the same bits";
    }
  }
}

// What one file's scales wrote is nothing to an engine with another's, or with none, or of the other dtype.
TEST_P(Fp8Kv, AStoreIsReadWithTheScalesThatWroteIt) {
  const TempDir dir, files;
  const auto prompt = random_prompt(3, 300, 4096);
  const auto loaded = [&](DType dtype, const std::string& scales) {
    EngineOptions o = options(dtype, scales);
    o.kv_store.dir = dir.path();
    const auto engine = make_engine(o);
    return engine ? run_one(*engine, greedy(prompt, 2)).stats.loaded_tokens : -1;
  };
  const std::string one = uneven_scales(files, 6, 2, 1), other = uneven_scales(files, 6, 2, 1.01);
  EXPECT_EQ(loaded(GetParam(), one), 0);
  EXPECT_EQ(loaded(GetParam(), other), 0);
  EXPECT_EQ(loaded(GetParam(), ""), 0);
  EXPECT_EQ(loaded(GetParam() == DType::fp8_e4m3 ? DType::fp8_e5m2 : DType::fp8_e4m3, one), 0);
  const std::string again = write(files.path() + "/again.json", [&] {
    std::ifstream in(one);
    return std::string(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }());
  EXPECT_EQ(loaded(GetParam(), again), 288) << "the same scales in another file";
  EXPECT_EQ(loaded(GetParam(), other), 288);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Fp8Kv, ::testing::Values(DType::fp8_e4m3, DType::fp8_e5m2),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

TEST(Fp8KvRefused, InOneLine) {
  const TempDir dir;
  const auto refused = [&](EngineOptions o, const std::string& what) {
    const Status s = Engine::create(std::move(o)).status();
    EXPECT_NE(s.message().find(what), std::string::npos) << s.message();
  };
  EngineOptions o = options(DType::bf16, "scales.json");
  refused(o, "--kv-scales scales.json: a KV cache of bf16 has no scales");
  o.kv_cache_dtype = DType::fp8_e4m3;
  refused(o, "scales.json: ");
  o.kv_scales = uneven_scales(dir, 6, 4, 1);
  refused(o, "kv_heads is 4, the model has 2");
  EngineOptions latent = exact_options(tiny_checkpoint("deepseek_plain"));
  latent.kv_cache_dtype = DType::fp8_e5m2;
  refused(latent, "--kv-cache-dtype fp8_e5m2: ");
  refused(latent, "caches latents");
  EXPECT_EQ(calibrate_kv(latent, {.texts = {"x"}}).status().code(), StatusCode::unsupported);
  EXPECT_EQ(calibrate_kv(options(DType::bf16, ""), {.texts = {""}}).status().code(), StatusCode::invalid_argument);
}

}  // namespace
}  // namespace fovea::testing
