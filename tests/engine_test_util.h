// What the engine's tests share: engines over the shipped model or tiny checkpoints, and running requests to their end.
#pragma once

#include <fovea/engine.h>

#include "engine/engine_impl.h"
#include "kernels/fake/fake_ops_test_util.h"
#include "kernels/ref/ref_ops.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

namespace fovea::testing {

inline std::string repo(const std::string& path) { return std::string(FOVEA_SOURCE_DIR) + "/" + path; }
inline std::string tiny_gqa() { return repo("models/tiny-gqa"); }
inline std::string tiny_dsa() { return repo("models/tiny-dsa"); }
inline std::string tiny_checkpoint(const std::string& name) { return repo("tests/data/checkpoints/" + name); }

inline nlohmann::json read_json(const std::string& path) {
  std::ifstream in(path);
  EXPECT_TRUE(in.good()) << path;
  return nlohmann::json::parse(in);
}

// The device that the engine's tests run on: FOVEA_TEST_DEVICE=cuda runs the same tests on a GPU, =fake on the fake device.
inline std::string test_device() {
  const char* device = std::getenv("FOVEA_TEST_DEVICE");
  return device ? device : "cpu";
}

// The longest prompt that tests read: sanitized, where a token costs ten times as much, the longest are left out or cut.
#ifdef FOVEA_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
inline constexpr int64_t kLongestPrompt = kSanitized ? 1000 : INT64_MAX;

// float32 everywhere: the mode that promises equal results.
inline EngineOptions exact_options(const std::string& model_dir) {
  EngineOptions o;
  o.model_dir = model_dir;
  o.device = test_device();
  o.numerics = NumericsChoice::f32;
  o.kv_cache_dtype = DType::f32;
  o.threads = 2;
  o.swap_space_bytes = int64_t{64} << 20;
  return o;
}

// An engine on the fake device, by the reference operations.
inline std::unique_ptr<EngineImpl> make_fake_engine(EngineOptions options, uint64_t seed = 1) {
  EngineParts parts;
  parts.device = std::make_unique<FakeDevice>(seed);
  parts.make_ops = [](Device& device) { return std::make_unique<FakeOps>(static_cast<FakeDevice&>(device), make_ref_ops()); };
  options.device = "cpu";  // not used
  auto engine = std::make_unique<EngineImpl>(std::move(options), std::move(parts));
  const Status made = engine->init();
  EXPECT_TRUE(made.ok()) << made.message();
  return made.ok() ? std::move(engine) : nullptr;
}

// The steps since `before` were graphs that were there already, waited for nothing and took no memory.
inline void expect_replayed(EngineImpl& engine, const DeviceCounters& before, int64_t steps) {
  const DeviceCounters after = engine.device().counters();
  EXPECT_EQ(after.synchronizations, before.synchronizations);
  EXPECT_EQ(after.allocations, before.allocations);
  EXPECT_EQ(after.graph_captures, before.graph_captures);
  EXPECT_EQ(after.graph_launches, before.graph_launches + steps);
}

inline std::unique_ptr<Engine> make_engine(EngineOptions options) {
  if (options.device == "fake") return make_fake_engine(std::move(options));
  auto engine = Engine::create(std::move(options));
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return engine.ok() ? std::move(engine).value() : nullptr;
}

// splitmix64, as tools/make_checkpoint_goldens.py draws prompts.
inline std::vector<TokenId> random_prompt(uint64_t seed, int64_t count, int32_t vocab) {
  std::vector<TokenId> ids;
  for (int64_t i = 0; i < count; ++i) {
    seed += 0x9e3779b97f4a7c15ull;
    uint64_t z = seed;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    z ^= z >> 31;
    ids.push_back(static_cast<TokenId>(3 + z % static_cast<uint64_t>(vocab - 3)));
  }
  return ids;
}

struct Result1 {
  std::vector<TokenId> tokens;
  std::string text;
  FinishReason reason = FinishReason::none;
  Status error;
  RequestStats stats;
  std::vector<std::vector<float>> logits;  // of every sampled row, where a tap was set
};

using Answers = std::map<std::pair<uint64_t, int32_t>, Result1>;

inline void collect(const std::vector<Output>& outputs, Answers* answers) {
  for (const Output& o : outputs) {
    Result1& r = (*answers)[{o.request.value, o.index}];
    r.tokens.insert(r.tokens.end(), o.tokens.begin(), o.tokens.end());
    r.text += o.text;
    if (!o.finished) continue;
    EXPECT_EQ(r.reason, FinishReason::none) << "finished twice";
    r.reason = o.reason;
    r.error = o.error;
    r.stats = o.stats;
  }
}

// Steps until nothing is left to do.
inline Answers run_all(Engine& engine) {
  Answers answers;
  std::vector<Output> outputs;
  for (bool more = true; more;) {
    outputs.clear();
    auto step = engine.step(&outputs);
    EXPECT_TRUE(step.ok()) << step.status().message();
    if (!step.ok()) break;
    more = *step;
    collect(outputs, &answers);
  }
  return answers;
}

// One request alone, with the logits of its sampled rows.
inline Result1 run_one(Engine& engine, Request request) {
  std::vector<std::vector<float>> logits;
  engine.set_logits_tap([&](RequestId, int32_t, std::span<const float> l) { logits.emplace_back(l.begin(), l.end()); });
  auto id = engine.submit(std::move(request));
  EXPECT_TRUE(id.ok()) << id.status().message();
  if (!id.ok()) return {};
  Answers answers = run_all(engine);
  engine.set_logits_tap(nullptr);
  Result1 r = answers.at({id->value, 0});
  r.logits = std::move(logits);
  return r;
}

inline Request greedy(std::vector<TokenId> prompt, int32_t max_tokens) {
  Request r;
  r.prompt = std::move(prompt);
  r.sampling.max_tokens = max_tokens;
  r.sampling.ignore_eos = true;
  return r;
}

// Steps in which a request of each method decodes: they replay, wait for nothing and take no memory.
inline void expect_steady_decodes(EngineImpl& engine, const std::vector<std::string>& methods) {
  constexpr int32_t kSteps = 100;
  for (const std::string& name : methods) {
    Request r = greedy(random_prompt(9, 150, engine.model().vocab_size), 2 * kSteps);
    r.decode_method = name;
    ASSERT_TRUE(engine.submit(r).ok());
  }
  std::vector<Output> outputs;
  const auto step = [&] {
    outputs.clear();
    ASSERT_TRUE(engine.step(&outputs).ok());
  };
  for (int i = 0; i < 40 && outputs.size() < methods.size(); ++i) step();  // prefill, until all answer
  for (int i = 0; i < 8; ++i) step();
  const DeviceCounters before = engine.device().counters();
  for (int32_t i = 0; i < kSteps; ++i) {
    step();
    ASSERT_EQ(outputs.size(), methods.size());
  }
  expect_replayed(engine, before, kSteps);
  run_all(engine);
}

inline float max_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  float worst = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (!(std::abs(a[i] - b[i]) <= worst)) worst = std::abs(a[i] - b[i]);  // NaN stays
  }
  return worst;
}

}  // namespace fovea::testing
