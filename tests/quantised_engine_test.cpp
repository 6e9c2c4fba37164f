// Whole engines over quantised weights: what is rounded where, and which cached blocks are whose.
#include <gmock/gmock.h>

#include <filesystem>
#include <set>

#include <fovea/quantize.h>

#include "engine_test_util.h"

namespace fovea::testing {
namespace {

EngineOptions options(WeightType type, NumericsChoice numerics, const std::string& model = tiny_gqa()) {
  EngineOptions o = exact_options(model);
  o.device = "cpu";
  o.numerics = numerics;
  o.dummy_weights = true;
  o.dummy_weight_type = type;
  o.max_model_len = 512;
  return o;
}

Result1 answer(Engine& engine) { return run_one(engine, greedy(random_prompt(3, 40, engine.model().vocab_size), 4)); }

Result1 answer(EngineOptions o) {
  const auto engine = make_engine(std::move(o));
  return engine ? answer(*engine) : Result1();
}

void expect_equal(const Result1& got, const Result1& wanted) {
  EXPECT_EQ(got.tokens, wanted.tokens);
  ASSERT_EQ(got.logits.size(), wanted.logits.size());
  for (size_t i = 0; i < got.logits.size(); ++i) EXPECT_LT(max_difference(got.logits[i], wanted.logits[i]), 1e-3f);
}

class QuantisedEngineTest : public ::testing::TestWithParam<WeightType> {};
INSTANTIATE_TEST_SUITE_P(Types, QuantisedEngineTest,
                         ::testing::Values(WeightType::q8_0, WeightType::q5_1, WeightType::mxfp4, WeightType::fp8_e4m3,
                                           WeightType::int4),
                         [](const auto& info) { return std::string(weight_type_name(info.param)); });

// Of a dense model, and of one with latent attention, an indexer and experts.
TEST_P(QuantisedEngineTest, Float32EqualsTheReference) {
  for (const std::string& model : {tiny_gqa(), tiny_dsa()}) {
    SCOPED_TRACE(model);
    EngineOptions reference = options(GetParam(), NumericsChoice::f32, model), o = reference;
    reference.use_reference_ops = true;
    o.device = model == tiny_gqa() ? test_device() : "cpu";
    expect_equal(answer(o), answer(reference));
  }
}

// What is copied has its scales. Of latent models bf16 is copied.
TEST_P(QuantisedEngineTest, ADeviceWithMemoryOfItsOwnHasTheSameWeights) {
  const EngineOptions latent = options(GetParam(), NumericsChoice::f32, tiny_dsa());
  const Result1 exact = answer(latent), bf16 = answer(*make_fake_engine(latent));
  ASSERT_FALSE(exact.logits.empty() || bf16.logits.empty());
  const float scale = max_difference(exact.logits[0], std::vector<float>(exact.logits[0].size()));
  EXPECT_LT(max_difference(bf16.logits[0], exact.logits[0]), 0.02f * scale);
  const EngineOptions o = options(GetParam(), NumericsChoice::f32);
  EngineOptions reference = o;
  reference.use_reference_ops = true;
  const auto engine = make_fake_engine(o);
  ASSERT_TRUE(engine);
  expect_equal(answer(*engine), answer(reference));
}

// A file that quantize_model wrote, against an engine that dequantises what it reads.
TEST(QuantisedEngine, WrittenFilesEqualTheReference) {
  const std::string file = ::testing::TempDir() + "fovea_quantised_engine_test.gguf";
  for (const char* type : {"q8_0", "q4_0", "q4_k_m", "q6_k"}) {
    QuantizeOptions q;
    q.model = tiny_gqa();
    q.out = file;
    q.type = type;
    q.overwrite = true;
    const auto made = quantize_model(q);
    ASSERT_TRUE(made.ok()) << made.status().message();
    EngineOptions o = exact_options(file);
    o.device = "cpu";
    EngineOptions reference = o;
    reference.use_reference_ops = true;
    const Result1 got = answer(o), wanted = answer(reference), original = answer(exact_options(tiny_gqa()));
    EXPECT_EQ(got.tokens, wanted.tokens) << type;
    ASSERT_EQ(got.logits.size(), wanted.logits.size());
    for (size_t i = 0; i < got.logits.size(); ++i) EXPECT_LT(max_difference(got.logits[i], wanted.logits[i]), 1e-3f) << type;
    EXPECT_GT(max_difference(got.logits[0], original.logits[0]), 1e-3f) << type << ": nothing was quantised";
  }
  std::filesystem::remove(file);
}

TEST(QuantisedEngine, EachModeOfNumbersHasBlocksOfItsOwn) {
  std::set<std::string> keys;
  for (const NumericsChoice numerics : {NumericsChoice::f32, NumericsChoice::int8}) {
    const auto engine = make_engine(options(WeightType::q8_0, numerics));
    Request r = greedy(random_prompt(3, 40, engine->model().vocab_size), 0);
    r.hold = true;
    const RequestId id = engine->submit(r).value();
    run_all(*engine);
    keys.insert(engine->request_state(id)->block_hashes.at(0));
  }
  EXPECT_EQ(keys.size(), 2u);
}

TEST(QuantisedEngine, RoundedAnswersStayClose) {
  const Result1 rounded = answer(options(WeightType::q8_0, NumericsChoice::automatic));
  const Result1 exact = answer(options(WeightType::q8_0, NumericsChoice::f32));
  ASSERT_EQ(rounded.logits.size(), exact.logits.size());
  const float scale = max_difference(exact.logits[0], std::vector<float>(exact.logits[0].size()));
  for (size_t i = 0; i < exact.logits.size() && rounded.tokens[i] == exact.tokens[i]; ++i)
    EXPECT_LT(max_difference(rounded.logits[i], exact.logits[i]), 0.05f * scale) << i;
}

TEST(QuantisedEngine, WhatCannotBeComputedIsRefusedByName) {
  EngineOptions o = options(WeightType::f16, NumericsChoice::f32);
  EXPECT_THAT(Engine::create(o).status().message(), ::testing::HasSubstr("dummy weights of type f16"));
  o = options(WeightType::fp8_e4m3, NumericsChoice::fp8);
  EXPECT_THAT(Engine::create(o).status().message(), ::testing::HasSubstr("--numerics fp8 on"));
}

}  // namespace
}  // namespace fovea::testing
