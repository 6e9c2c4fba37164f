// Greedy ids and logits of transformers (float32, eager attention): the shipped models over a short prompt and over long ones
// (tiny-dsa then reads 512 of its 2,015 tokens), and random checkpoints that cover architectures, rope kinds, biases, norms,
// tied heads and GQA ratios in pairs, and DeepSeek's and GLM's latent attention, indexers and experts; and GGUF files with every type of
// weights, against the model that they mean.
#include "engine_test_util.h"

#include <filesystem>

namespace fovea::testing {
namespace {

constexpr float kLogitTolerance = 1e-3f;

void expect_golden(Engine& engine, std::vector<TokenId> prompt, const nlohmann::json& golden) {
  const auto want_ids = golden.at("generated_ids").get<std::vector<TokenId>>();
  const auto want_logits = golden.at("last_logits").get<std::vector<float>>();
  const Result1 r = run_one(engine, greedy(std::move(prompt), static_cast<int32_t>(want_ids.size())));
  ASSERT_TRUE(r.error.ok()) << r.error.message();
  EXPECT_EQ(r.tokens, want_ids);
  ASSERT_FALSE(r.logits.empty());
  EXPECT_LE(max_difference(r.logits[0], want_logits), kLogitTolerance);
}

class ShippedModel : public ::testing::TestWithParam<std::tuple<std::string, bool>> {};

TEST_P(ShippedModel, EqualsTransformers) {
  const auto& [name, reference] = GetParam();
  EngineOptions o = exact_options(repo("models/" + name));
  o.use_reference_ops = reference;
  auto engine = make_engine(o);
  ASSERT_TRUE(engine);
  const auto golden = read_json(o.model_dir + "/golden.json");
  expect_golden(*engine, golden.at("prompt_ids").get<std::vector<TokenId>>(), golden);
}

class LongPrompts : public ::testing::TestWithParam<std::string> {};

TEST_P(LongPrompts, EqualTransformers) {
  const EngineOptions o = exact_options(repo("models/" + GetParam()));
  auto engine = make_engine(o);
  ASSERT_TRUE(engine);
  const auto records = read_json(o.model_dir + "/golden-long.json");
  ASSERT_EQ(records.size(), 3u);
  for (const auto& golden : records) {
    auto prompt = golden.at("prompt_ids").get<std::vector<TokenId>>();
    ASSERT_GT(prompt.size(), 2000u);
    SCOPED_TRACE(prompt.size());
    expect_golden(*engine, std::move(prompt), golden);
    if (kSanitized) break;  // a token costs ten times as much there: one of one model
  }
}

INSTANTIATE_TEST_SUITE_P(Of, LongPrompts,
                         ::testing::ValuesIn(kSanitized ? std::vector<std::string>{"tiny-dsa"}
                                                        : std::vector<std::string>{"tiny-gqa", "tiny-dsa"}),
                         [](const auto& info) { return std::string(info.param == "tiny-gqa" ? "gqa" : "dsa"); });

INSTANTIATE_TEST_SUITE_P(Ops, ShippedModel, ::testing::Combine(::testing::Values("tiny-gqa", "tiny-dsa"), ::testing::Bool()),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param) == "tiny-gqa" ? "gqa" : "dsa") +
                                  (std::get<1>(info.param) ? "_reference" : "_cpu");
                         });

// Directories with a golden.json.
std::vector<std::string> goldens_in(const std::string& folder) {
  std::vector<std::string> dirs;
  for (const auto& entry : std::filesystem::directory_iterator(repo(folder))) {
    if (std::filesystem::exists(entry.path() / "golden.json")) dirs.push_back(folder + "/" + entry.path().filename().string());
  }
  std::sort(dirs.begin(), dirs.end());
  return dirs;
}

std::string last_name(const ::testing::TestParamInfo<std::string>& info) { return std::filesystem::path(info.param).filename(); }

class RandomCheckpoint : public ::testing::TestWithParam<std::string> {};

TEST_P(RandomCheckpoint, EqualsTransformers) {
  const std::string dir = repo(GetParam()), file = dir + "/model.gguf";
  const EngineOptions o = exact_options(std::filesystem::exists(file) ? file : dir);
  auto engine = make_engine(o);
  ASSERT_TRUE(engine);
  const auto golden = read_json(dir + "/golden.json");
  for (const auto& c : golden.at("cases")) {
    const int64_t tokens = c.at("prompt_tokens");
    if (tokens > kLongestPrompt) continue;
    SCOPED_TRACE(tokens);
    const auto prompt = random_prompt(c.at("prompt_seed"), tokens, engine->model().vocab_size);
    const auto head = c.at("prompt_head").get<std::vector<TokenId>>();
    ASSERT_TRUE(std::equal(head.begin(), head.end(), prompt.begin()));
    expect_golden(*engine, prompt, c);
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, RandomCheckpoint, ::testing::ValuesIn(goldens_in("tests/data/checkpoints")), last_name);
INSTANTIATE_TEST_SUITE_P(Gguf, RandomCheckpoint, ::testing::ValuesIn(goldens_in("tests/data/gguf")), last_name);

}  // namespace
}  // namespace fovea::testing
