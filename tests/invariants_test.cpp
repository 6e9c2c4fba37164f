// What must stay true of the whole engine, in float32 mode: the result of a request depends on its tokens and its method,
// and on nothing around it. Logits agree to 1e-4 (the GEMM library may vary with the number of rows); where the same
// kernels run on the same rows, to the bit.
#include "engine_test_util.h"

#include "engine/engine_impl.h"

#include <cstring>
#include <random>

namespace fovea::testing {
namespace {

constexpr float kTolerance = 1e-4f;
constexpr const char* kCheckpoint = "qwen3_llama3_8h2kv_d64";  // GQA 4, q/k norm, scaled rope

// One model of each kind of attention. Where a model chooses tokens and experts, a last bit can turn one choice, and a logit
// moves by what one of many tokens weighs.
struct Model {
  const char* checkpoint;
  float tolerance;
};
constexpr Model kModels[] = {
    {kCheckpoint, kTolerance}, {"deepseek_groups", 2e-3f}, {"deepseekv3_one_query_matrix", 2e-3f}, {"glm_shared_indexer", 2e-3f}};

class Invariants : public ::testing::TestWithParam<Model> {};
INSTANTIATE_TEST_SUITE_P(Of, Invariants, ::testing::ValuesIn(kModels), [](const auto& info) { return info.param.checkpoint; });

EngineOptions small(const std::string& name = kCheckpoint) {
  EngineOptions o = exact_options(tiny_checkpoint(name));
  o.max_model_len = 4096;
  return o;
}

EngineOptions sparse(int32_t min_context = 64, GsaCodes codes = GsaCodes::symmetric) {
  EngineOptions o = small();
  MethodOptions m;
  m.name = "gsa_on_device";
  m.gsa.budget_tokens = 96;
  m.gsa.codes = codes;
  m.gsa.length_factor = codes == GsaCodes::asymmetric;
  o.methods = {m};
  o.decode_method = "gsa_on_device";
  o.sparse_min_context = min_context;
  return o;
}

std::vector<TokenId> prompt_of(Engine& engine, uint64_t seed, int64_t tokens) {
  return random_prompt(seed, tokens, engine.model().vocab_size);
}

void expect_same(const Result1& a, const Result1& b, float tolerance) {
  ASSERT_TRUE(a.error.ok() && b.error.ok());
  EXPECT_EQ(a.tokens, b.tokens);
  ASSERT_EQ(a.logits.size(), b.logits.size());
  for (size_t i = 0; i < a.logits.size(); ++i) EXPECT_LE(max_difference(a.logits[i], b.logits[i]), tolerance) << "row " << i;
}

TEST_P(Invariants, AnyChunkingOfAPrefillGivesTheSame) {
  auto whole = make_engine(small(GetParam().checkpoint));
  const auto prompt = prompt_of(*whole, 1, 509);
  EngineOptions o = small(GetParam().checkpoint);
  o.max_num_batched_tokens = 512;
  const Result1 want = run_one(*make_engine(o), greedy(prompt, 4));
  for (int32_t chunk : {1, 7, 16, 100, 508}) {
    o.max_num_batched_tokens = chunk;
    SCOPED_TRACE(chunk);
    expect_same(run_one(*make_engine(o), greedy(prompt, 4)), want, GetParam().tolerance);
  }
}

TEST_P(Invariants, DecodeEqualsPrefillOfTheSameTokens) {
  auto engine = make_engine(small(GetParam().checkpoint));
  auto prompt = prompt_of(*engine, 2, 130);
  const Result1 decoded = run_one(*engine, greedy(prompt, 20));
  for (size_t t : {1, 7, 19}) {
    auto longer = prompt;
    longer.insert(longer.end(), decoded.tokens.begin(), decoded.tokens.begin() + static_cast<int64_t>(t));
    EngineOptions cold = small(GetParam().checkpoint);
    cold.enable_prefix_caching = false;
    const Result1 prefilled = run_one(*make_engine(cold), greedy(longer, 1));
    EXPECT_LE(max_difference(prefilled.logits.at(0), decoded.logits.at(t)), GetParam().tolerance) << t;
  }
}

TEST_P(Invariants, APrefixHitEqualsAColdRun) {
  auto engine = make_engine(small(GetParam().checkpoint));
  const auto prompt = prompt_of(*engine, 3, 300);
  const Result1 cold = run_one(*engine, greedy(prompt, 8));
  EXPECT_EQ(cold.stats.cached_tokens, 0);
  const Result1 hit = run_one(*engine, greedy(prompt, 8));
  EXPECT_EQ(hit.stats.cached_tokens, 288);  // full blocks; at least one token is computed
  expect_same(hit, cold, GetParam().tolerance);
  // Another beginning shares nothing.
  auto other = prompt;
  other[0] = other[0] == 3 ? 4 : 3;
  EXPECT_EQ(run_one(*engine, greedy(other, 1)).stats.cached_tokens, 0);
}

TEST_P(Invariants, PagesMayLieAnywhere) {
  auto engine = make_engine(small(GetParam().checkpoint));
  const auto prompt = prompt_of(*engine, 4, 200);
  const Result1 want = run_one(*engine, greedy(prompt, 6));
  EngineOptions o = small(GetParam().checkpoint);
  o.enable_prefix_caching = false;
  auto shuffled = make_engine(o);
  // Requests of many lengths come and go, some aborted, so that the free blocks are out of order.
  std::mt19937 rng(5);
  std::vector<Output> outputs;
  std::vector<RequestId> ids;
  for (int i = 0; i < 12; ++i) {
    auto id = shuffled->submit(greedy(prompt_of(*shuffled, 100 + i, 10 + rng() % 90), 1 + rng() % 9));
    ASSERT_TRUE(id.ok());
    ids.push_back(*id);
    ASSERT_TRUE(shuffled->step(&outputs).ok());
    if (i % 3 == 0) shuffled->abort(ids[rng() % ids.size()]);
  }
  auto mine = shuffled->submit(greedy(prompt, 6));
  ASSERT_TRUE(mine.ok());
  const Answers answers = run_all(*shuffled);
  EXPECT_EQ(answers.at({mine->value, 0}).tokens, want.tokens);
}

TEST_P(Invariants, TheRestOfTheBatchChangesNothing) {
  auto engine = make_engine(small(GetParam().checkpoint));
  const auto prompt = prompt_of(*engine, 6, 150);
  const Result1 want = run_one(*engine, greedy(prompt, 10));
  EngineOptions o = small(GetParam().checkpoint);
  o.enable_prefix_caching = false;
  o.max_num_batched_tokens = 128;
  auto busy = make_engine(o);
  std::vector<RequestId> ids;
  for (int i = 0; i < 7; ++i) {
    auto id = busy->submit(greedy(i == 3 ? prompt : prompt_of(*busy, 50 + i, 20 * i + 1), 10));
    ASSERT_TRUE(id.ok());
    ids.push_back(*id);
  }
  EXPECT_EQ(run_all(*busy).at({ids[3].value, 0}).tokens, want.tokens);
}

TEST_P(Invariants, PreemptionChangesNothing) {
  for (const bool with_sparse : {false, true}) {
    if (with_sparse && GetParam().checkpoint != kCheckpoint) continue;
    SCOPED_TRACE(with_sparse ? "sparse, swapped" : "dense, recomputed");
    EngineOptions o = with_sparse ? sparse() : small(GetParam().checkpoint);
    o.enable_prefix_caching = false;
    auto roomy = make_engine(o);
    std::vector<std::vector<TokenId>> prompts;
    std::vector<Result1> want;
    for (int i = 0; i < 5; ++i) {
      prompts.push_back(prompt_of(*roomy, 20 + i, 150 + 10 * i));
      want.push_back(run_one(*roomy, greedy(prompts.back(), 40)));
    }
    o.kv_cache_memory_bytes = roomy->stats().block_bytes * 36;  // five requests want about 65 blocks
    auto starved = make_engine(o);
    std::vector<RequestId> ids;
    for (const auto& p : prompts) {
      auto id = starved->submit(greedy(p, 40));
      ASSERT_TRUE(id.ok());
      ids.push_back(*id);
    }
    const Answers got = run_all(*starved);
    int64_t preemptions = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      const Result1& r = got.at({ids[i].value, 0});
      EXPECT_EQ(r.tokens, want[i].tokens) << i << " " << r.error.message();
      preemptions += r.stats.preemptions;
    }
    EXPECT_GT(preemptions, 0);
    EXPECT_EQ(starved->stats().blocks_in_use, 0);
    EXPECT_EQ(starved->stats().swapped_bytes, 0);
  }
}

class SparseInvariants : public ::testing::TestWithParam<GsaCodes> {
 protected:
  EngineOptions sparse(int32_t min_context = 64) const { return testing::sparse(min_context, GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Of, SparseInvariants, ::testing::Values(GsaCodes::symmetric, GsaCodes::asymmetric));

TEST_P(SparseInvariants, ABudgetOfTheWholeContextIsExactlyDense) {
  auto dense = make_engine(small());
  const auto prompt = prompt_of(*dense, 7, 700);
  const Result1 want = run_one(*dense, greedy(prompt, 6));
  Request r = greedy(prompt, 6);
  r.budget_tokens = 4096;
  const Result1 got = run_one(*make_engine(sparse()), r);
  expect_same(got, want, 0.0f);
  EXPECT_EQ(got.stats.summary_bytes_read, 0);
  EXPECT_EQ(got.stats.kv_bytes_share(), 1.0);
}

TEST_P(SparseInvariants, ASparseAnswerDoesNotDependOnTheCache) {
  auto engine = make_engine(sparse());
  const auto prompt = prompt_of(*engine, 13, 300);
  const Result1 cold = run_one(*engine, greedy(prompt, 8));
  const Result1 hit = run_one(*engine, greedy(prompt, 8));
  EXPECT_EQ(cold.stats.cached_tokens, 0);
  EXPECT_EQ(hit.stats.cached_tokens, 288);
  expect_same(hit, cold, kTolerance);
  EXPECT_EQ(hit.stats.rows_by_method, cold.stats.rows_by_method) << "what is left of a prompt is prefilled";
}

TEST_P(SparseInvariants, AShortContextIsExactlyDense) {
  auto dense = make_engine(small());
  const auto prompt = prompt_of(*dense, 8, 700);
  const Result1 want = run_one(*dense, greedy(prompt, 6));
  const Result1 got = run_one(*make_engine(sparse(1024)), greedy(prompt, 6));
  expect_same(got, want, 0.0f);
  EXPECT_EQ(got.stats.kv_bytes_share(), 1.0);
  // And a long one is not: the method really reads less.
  const Result1 less = run_one(*make_engine(sparse(64)), greedy(prompt, 6));
  EXPECT_LT(less.stats.kv_bytes_share(), 0.5);
  EXPECT_GT(less.stats.kv_bytes_read, 0);
}

TEST_P(Invariants, WhatLiesBeyondTheTokensIsNeverUsed) {
  std::vector<EngineOptions> all = {small(GetParam().checkpoint)};
  if (GetParam().checkpoint == kCheckpoint) all.insert(all.end(), {sparse(), sparse(64, GsaCodes::asymmetric)});
  for (EngineOptions& o : all) {
    o.max_model_len = 512;
    o.max_num_seqs = 4;
    auto clean = make_engine(o);
    const auto prompt = prompt_of(*clean, 9, 333);
    const Result1 want = run_one(*clean, greedy(prompt, 20));
    auto poisoned = make_engine(o);
    auto& impl = dynamic_cast<EngineImpl&>(*poisoned);
    KvCache& kv = impl.kv();
    const auto stream = impl.device().make_stream();
    for (int32_t plane = 0; plane < kv.num_planes(); ++plane) {
      for (int32_t layer = 0; layer < kv.config().num_layers; ++layer) {
        const auto& p = kv.plane(PlaneIdx{plane});
        impl.device().fill(p.data(LayerIdx{layer}), 0xff, static_cast<size_t>(p.block_bytes() * p.num_blocks()), *stream);  // NaN
      }
    }
    ASSERT_TRUE(stream->synchronize().ok());
    expect_same(run_one(*poisoned, greedy(prompt, 20)), want, 0.0f);
  }
}

// A question through the decode method in one forward of rows of growing length, or its tokens one after the other.
TEST_P(SparseInvariants, AnExtensionEqualsItsTokensOneByOne) {
  auto engine = make_engine(sparse());
  const auto document = prompt_of(*engine, 10, 700);
  const auto question = prompt_of(*engine, 11, 37);
  const auto hold = [&](std::vector<TokenId> tokens, std::optional<RequestId> parent) {
    Request r = greedy(std::move(tokens), 0);
    r.hold = true;
    r.fork_of = parent;
    auto id = engine->submit(r);
    EXPECT_TRUE(id.ok());
    run_all(*engine);
    return *id;
  };
  const RequestId base = hold(document, std::nullopt);
  Request at_once = greedy(question, 5);
  at_once.fork_of = base;
  const Result1 got = run_one(*engine, at_once);
  EXPECT_GE(got.stats.rows_by_method, 37);

  RequestId parent = base;
  for (size_t i = 0; i + 1 < question.size(); ++i) parent = hold({question[i]}, parent);
  Request last = greedy({question.back()}, 5);
  last.fork_of = parent;
  expect_same(got, run_one(*engine, last), kTolerance);
}

TEST_P(Invariants, SeededAnswersRepeatWhateverTheBatch) {
  auto engine = make_engine(small(GetParam().checkpoint));
  Request r = greedy(prompt_of(*engine, 12, 60), 12);
  r.sampling.temperature = 0.8f;
  r.sampling.top_p = 0.95f;
  r.sampling.seed = 99;
  r.sampling.n = 3;
  auto first = engine->submit(r);
  const Answers a = run_all(*engine);
  EngineOptions o = small(GetParam().checkpoint);
  o.max_num_batched_tokens = 16;
  auto other = make_engine(o);
  ASSERT_TRUE(other->submit(greedy(prompt_of(*other, 13, 90), 30)).ok());
  auto second = other->submit(r);
  const Answers b = run_all(*other);
  for (int32_t i = 0; i < 3; ++i) EXPECT_EQ(a.at({first->value, i}).tokens, b.at({second->value, i}).tokens) << i;
  EXPECT_NE(a.at({first->value, 0}).tokens, a.at({first->value, 1}).tokens);
}

TEST_P(Invariants, ForkedQuestionsShareTheDocumentsBlocks) {
  auto engine = make_engine(small(GetParam().checkpoint));
  const auto document = prompt_of(*engine, 14, 395);  // 24 full blocks and a partial one
  Request doc = greedy(document, 0);
  doc.hold = true;
  auto held = engine->submit(doc);
  run_all(*engine);
  EXPECT_EQ(engine->stats().blocks_in_use, 25);
  std::vector<RequestId> ids;
  for (int i = 0; i < 4; ++i) {
    Request q = greedy(prompt_of(*engine, 60 + i, 9), 3);
    q.fork_of = *held;
    ids.push_back(*engine->submit(q));
  }
  const Answers answers = run_all(*engine);
  for (int i = 0; i < 4; ++i) {
    auto whole = document;
    const auto question = prompt_of(*engine, 60 + i, 9);
    whole.insert(whole.end(), question.begin(), question.end());
    EngineOptions cold = small(GetParam().checkpoint);
    EXPECT_EQ(answers.at({ids[i].value, 0}).tokens, run_one(*make_engine(cold), greedy(whole, 3)).tokens) << i;
    EXPECT_EQ(answers.at({ids[i].value, 0}).stats.cached_tokens, 395);
  }
  EXPECT_EQ(engine->stats().blocks_in_use, 25);
  engine->release(*held);
  run_all(*engine);
  EXPECT_EQ(engine->stats().blocks_in_use, 0);
}

}  // namespace
}  // namespace fovea::testing
