// The engine on a GPU: what a decode step may not do, graphs against eager launches, and the CPU engine's answers. The other
// engine tests run there too, with FOVEA_TEST_DEVICE=cuda.
#include "gsa_engine_test_util.h"
#include "latent_engine_test_util.h"

#include "device/gpu_test_util.h"
#include "engine/engine_impl.h"

namespace fovea::testing {
namespace {

class GpuEngine : public WithGpu<::testing::Test> {
 protected:
  static EngineOptions options(const std::string& device, NumericsChoice numerics = NumericsChoice::f32) {
    EngineOptions o = exact_options(tiny_gqa());
    o.device = device;
    o.numerics = numerics;
    if (numerics == NumericsChoice::bf16) o.kv_cache_dtype = DType::bf16;
    MethodOptions m;
    m.name = "gsa_on_device";
    m.gsa.budget_tokens = 128;
    m.gsa.codes = GsaCodes::symmetric;
    o.methods = {m};
    m.label = "asymmetric";  // a second kind of codes
    m.gsa.codes = GsaCodes::asymmetric;
    m.gsa.length_factor = true;
    o.methods.push_back(m);
    m.label = "codes on the host";
    m.gsa.scoring = GsaScoring::host;
    o.methods.push_back(m);
    o.sparse_min_context = 256;
    o.max_num_batched_tokens = 512;
    o.enable_prefix_caching = false;
    return o;
  }

  static Request request(uint64_t seed, int64_t prompt, int32_t tokens, const char* method, int32_t vocab) {
    Request r = greedy(random_prompt(seed, prompt, vocab), tokens);
    r.decode_method = method;
    return r;
  }
};

TEST_F(GpuEngine, AHundredDecodeStepsWaitForNothingAndTakeNoMemory) {
  auto made = make_engine(options("cuda", NumericsChoice::bf16));
  ASSERT_TRUE(made);
  auto& engine = dynamic_cast<EngineImpl&>(*made);
  const int32_t vocab = engine.model().vocab_size;
  for (uint64_t seed : {1, 2}) ASSERT_TRUE(engine.submit(request(seed, 700, 160, "dense", vocab)).ok());
  for (uint64_t seed : {3, 4, 5}) ASSERT_TRUE(engine.submit(request(seed, 1500, 160, "gsa_on_device", vocab)).ok());
  std::vector<Output> outputs;
  const auto step = [&] {
    outputs.clear();
    const auto more = engine.step(&outputs);
    ASSERT_TRUE(more.ok()) << more.status().message();
  };
  for (int i = 0; i < 40 && outputs.size() < 5; ++i) step();  // prefill, until all five answer
  ASSERT_EQ(outputs.size(), 5u);
  for (int i = 0; i < 8; ++i) step();
  const DeviceCounters before = engine.device().counters();
  for (int i = 0; i < 100; ++i) {
    step();
    ASSERT_EQ(outputs.size(), 5u);
  }
  expect_replayed(engine, before, 100);
  run_all(engine);
}

// Requests that come, end and are aborted while others decode: every step of theirs, replayed or eager, gives the same.
TEST_F(GpuEngine, ReplayedStepsEqualEagerOnes) {
  std::vector<Answers> answers;
  for (const bool graphs : {true, false}) {
    EngineOptions o = options("cuda");
    o.cuda_graphs = graphs;
    auto engine = make_engine(o);
    ASSERT_TRUE(engine);
    const int32_t vocab = engine->model().vocab_size;
    Answers got;
    std::vector<Output> outputs;
    std::vector<RequestId> ids;
    for (int turn = 0; turn < 120; ++turn) {
      if (turn % 7 == 0) {
        const auto id =
            engine->submit(request(turn, 100 + 37 * (turn % 23), 5 + turn % 31, turn % 2 ? "dense" : "gsa_on_device", vocab));
        ASSERT_TRUE(id.ok());
        ids.push_back(*id);
      }
      if (turn % 35 == 34) engine->abort(ids[ids.size() - 2]);
      outputs.clear();
      ASSERT_TRUE(engine->step(&outputs).ok());
      collect(outputs, &got);
    }
    for (auto& [key, r] : run_all(*engine)) {
      Result1& whole = got[key];
      whole.tokens.insert(whole.tokens.end(), r.tokens.begin(), r.tokens.end());
      whole.reason = r.reason;
    }
    answers.push_back(std::move(got));
  }
  ASSERT_EQ(answers[0].size(), answers[1].size());
  for (const auto& [key, r] : answers[0]) {
    if (r.reason == FinishReason::aborted) continue;  // how far it came depends on nothing but the turn, but tokens lag by one
    EXPECT_EQ(r.tokens, answers[1].at(key).tokens) << key.first;
    EXPECT_FALSE(r.tokens.empty());
  }
}

TEST_F(GpuEngine, AnswersAsTheCpuDoes) {
  auto cpu = make_engine(options("cpu")), gpu = make_engine(options("cuda"));
  ASSERT_TRUE(cpu && gpu);
  const int32_t vocab = cpu->model().vocab_size;
  for (const char* method : {"dense", "gsa_on_device", "asymmetric", "codes on the host"}) {
    SCOPED_TRACE(method);
    for (int64_t prompt : {1, 15, 16, 17, 255, 256, 1000, 3000}) {
      SCOPED_TRACE(prompt);
      const Request r = request(static_cast<uint64_t>(prompt), prompt, 24, method, vocab);
      const Result1 want = run_one(*cpu, r), got = run_one(*gpu, r);
      EXPECT_EQ(got.tokens, want.tokens);
      EXPECT_EQ(got.stats.kv_bytes_read, want.stats.kv_bytes_read);
      EXPECT_EQ(got.stats.kv_bytes_dense, want.stats.kv_bytes_dense);
      EXPECT_EQ(got.stats.summary_bytes_read, want.stats.summary_bytes_read);
      ASSERT_FALSE(got.logits.empty());
      EXPECT_LE(max_difference(got.logits[0], want.logits[0]), 1e-3f);
    }
  }
}

TEST_F(GpuEngine, EveryKindOfGsaAnswersAsOnTheCpu) {
  for (const bool overlap : {false, true}) {
    SCOPED_TRACE(overlap);
    EngineOptions o = gsa_options(gsa_methods(overlap));
    o.max_num_seqs = 12;
    o.device = "cpu";
    auto cpu = make_engine(o);
    o.device = "cuda";
    auto gpu = make_engine(o);
    ASSERT_TRUE(cpu && gpu);
    expect_equal_answers(*cpu, *gpu);
    expect_steady_gsa(dynamic_cast<EngineImpl&>(*gpu));
  }
}

// In float32, and in bf16 by tensor cores: what is left out is much the same, and hardly anything of it matters.
TEST_F(GpuEngine, SparsePrefillAnswersAsOnTheCpu) {
  for (const NumericsChoice numerics : {NumericsChoice::f32, NumericsChoice::bf16}) {
    EngineOptions o = options("cpu");
    o.methods.push_back({.name = "xattention"});
    o.methods.back().xattention.min_context = 512;
    o.methods.back().xattention.threshold = 0.5;
    auto cpu = make_engine(o);
    o.device = "cuda";
    o.numerics = numerics;
    if (numerics == NumericsChoice::bf16) o.kv_cache_dtype = DType::bf16;
    auto gpu = make_engine(o);
    ASSERT_TRUE(cpu && gpu);
    for (int64_t prompt : {1500, 4000}) {
      SCOPED_TRACE(prompt);
      Request r = request(static_cast<uint64_t>(prompt), prompt, 12, "dense", cpu->model().vocab_size);
      r.prefill_method = "xattention";
      const Result1 want = run_one(*cpu, r), got = run_one(*gpu, r);
      ASSERT_TRUE(got.error.ok()) << got.error.message();
      EXPECT_LT(want.stats.prefill_share(), 1.0);
      EXPECT_NEAR(got.stats.prefill_share(), want.stats.prefill_share(), 0.02);
      EXPECT_EQ(got.stats.prefill_pairs_dense, want.stats.prefill_pairs_dense);
      if (numerics == NumericsChoice::f32) EXPECT_EQ(got.tokens, want.tokens);
    }
  }
}

TEST_F(GpuEngine, SampledAnswersAreTheCpus) {
  auto cpu = make_engine(options("cpu")), gpu = make_engine(options("cuda"));
  ASSERT_TRUE(cpu && gpu);
  Request r = request(9, 300, 20, "dense", cpu->model().vocab_size);
  r.sampling.temperature = 0.8f;
  r.sampling.seed = 5;
  r.sampling.n = 3;
  for (const auto& change : std::vector<std::function<void(SamplingParams&)>>{
           [](SamplingParams&) {}, [](SamplingParams& p) { p.top_k = 20; }, [](SamplingParams& p) { p.top_p = 0.9f; },
           [](SamplingParams& p) { p.min_p = 0.05f; }, [](SamplingParams& p) { p.repetition_penalty = 1.3f; }}) {
    Request changed = r;
    change(changed.sampling);
    ASSERT_TRUE(cpu->submit(changed).ok() && gpu->submit(changed).ok());
    const Answers want = run_all(*cpu), got = run_all(*gpu);
    ASSERT_EQ(got.size(), 3u);
    auto g = got.begin();
    for (const auto& [key, w] : want) EXPECT_EQ((g++)->second.tokens, w.tokens) << key.second;
  }
}

TEST_F(GpuEngine, Bf16GivesTheGoldenIds) {
  auto engine = make_engine(options("cuda", NumericsChoice::bf16));
  ASSERT_TRUE(engine);
  const auto golden = read_json(tiny_gqa() + "/golden.json");
  const auto want = golden.at("generated_ids").get<std::vector<TokenId>>();
  const Result1 r =
      run_one(*engine, greedy(golden.at("prompt_ids").get<std::vector<TokenId>>(), static_cast<int32_t>(want.size())));
  EXPECT_EQ(r.tokens, want);
}

TEST_F(GpuEngine, LatentModelsAnswerAsOnTheCpu) {
  for (const std::string& checkpoint : kLatentCheckpoints) {
    SCOPED_TRACE(checkpoint);
    EngineOptions o = latent_options(checkpoint);
    o.device = "cpu";
    auto cpu = make_engine(o);
    o.device = "cuda";
    auto gpu = make_engine(o);
    ASSERT_TRUE(cpu && gpu);
    expect_equal_latent_answers(*cpu, *gpu);
    expect_steady_decodes(dynamic_cast<EngineImpl&>(*gpu), {"dense", "dsa"});
  }
}

// What it was trained in: the ids of transformers, from latents and products in bf16.
TEST_F(GpuEngine, LatentModelsInBf16GiveTheGoldenIds) {
  EngineOptions o = exact_options(tiny_dsa());
  o.device = "cuda";
  o.numerics = NumericsChoice::bf16;
  o.kv_cache_dtype = DType::bf16;
  auto engine = make_engine(o);
  ASSERT_TRUE(engine);
  const auto golden = read_json(tiny_dsa() + "/golden.json");
  const auto want = golden.at("generated_ids").get<std::vector<TokenId>>();
  const Result1 r =
      run_one(*engine, greedy(golden.at("prompt_ids").get<std::vector<TokenId>>(), static_cast<int32_t>(want.size())));
  EXPECT_EQ(r.tokens, want);
}

}  // namespace
}  // namespace fovea::testing
