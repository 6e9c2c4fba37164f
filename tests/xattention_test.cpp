// XAttention in the whole engine: what a sparse prefill leaves depends on the tokens and the method, not on chunks, and
// the prefix cache never hands it to another method.
#include "engine_test_util.h"

namespace fovea::testing {
namespace {

constexpr float kTolerance = 1e-4f;  // the GEMM library may vary with the number of rows
const char* const kLabel = "xattention[threshold=0.4,min_context=256,stride=8]";

EngineOptions options(double threshold = 0.4) {
  EngineOptions o = exact_options(tiny_checkpoint("qwen3_llama3_8h2kv_d64"));
  o.max_model_len = 4096;
  MethodOptions m;
  m.name = "xattention";
  m.label = kLabel;
  m.xattention.threshold = threshold;
  m.xattention.min_context = 256;
  m.xattention.stride = 8;
  o.methods = {m};
  o.prefill_method = kLabel;
  return o;
}

std::vector<TokenId> prompt_of(Engine& engine, uint64_t seed, int64_t tokens) {
  return random_prompt(seed, tokens, engine.model().vocab_size);
}

Request prompt_by(const char* method, std::vector<TokenId> prompt, int32_t max_tokens) {
  Request r = greedy(std::move(prompt), max_tokens);
  r.prefill_method = method;
  return r;
}

void expect_same(const Result1& a, const Result1& b, float tolerance = kTolerance) {
  ASSERT_TRUE(a.error.ok() && b.error.ok());
  EXPECT_EQ(a.tokens, b.tokens);
  ASSERT_EQ(a.logits.size(), b.logits.size());
  for (size_t i = 0; i < a.logits.size(); ++i) EXPECT_LE(max_difference(a.logits[i], b.logits[i]), tolerance) << "row " << i;
}

TEST(XAttentionEngine, AnyChunkingOfAPrefillGivesTheSame) {
  EngineOptions o = options();
  o.max_num_batched_tokens = 2048;
  auto whole = make_engine(o);
  const auto prompt = prompt_of(*whole, 1, 1500);
  const Result1 want = run_one(*whole, greedy(prompt, 6));
  EXPECT_LT(want.stats.prefill_share(), 0.9) << "something was left out";
  EXPECT_GT(want.stats.prefill_share(), 0.05);
  for (int32_t chunk : {128, 384, 500}) {  // 500: cut at 384
    SCOPED_TRACE(chunk);
    o.max_num_batched_tokens = chunk;
    const Result1 got = run_one(*make_engine(o), greedy(prompt, 6));
    expect_same(got, want);
    EXPECT_EQ(got.stats.prefill_pairs_read, want.stats.prefill_pairs_read) << "the same blocks were read";
  }
}

TEST(XAttentionEngine, WhatIsReadChangesTheAnswer) {
  EngineOptions o = options(0.05);
  auto engine = make_engine(o);
  const auto prompt = prompt_of(*engine, 2, 1200);
  const Result1 sparse = run_one(*engine, greedy(prompt, 2)), dense = run_one(*engine, prompt_by("dense", prompt, 2));
  EXPECT_GT(max_difference(sparse.logits.at(0), dense.logits.at(0)), 1e-3f) << "else the other tests show nothing";
  EXPECT_DOUBLE_EQ(dense.stats.prefill_share(), 1.0);
}

TEST(XAttentionEngine, AThresholdOfOneIsDense) {
  auto engine = make_engine(options(1.0));
  const auto prompt = prompt_of(*engine, 3, 1000);
  const Result1 all = run_one(*engine, greedy(prompt, 6));
  const Result1 dense = run_one(*engine, prompt_by("dense", prompt, 6));
  EXPECT_EQ(dense.stats.cached_tokens, 0);
  expect_same(all, dense);
  EXPECT_DOUBLE_EQ(all.stats.prefill_share(), 1.0);
}

TEST(XAttentionEngine, ShortPromptsAreDense) {
  EngineOptions o = options(0.05);
  o.methods[0].xattention.min_context = 384;  // two tiles would be read whole in any case: the first block and the diagonal's
  auto engine = make_engine(o);
  const auto prompt = prompt_of(*engine, 4, 384);  // its last tile ends at min_context
  const Result1 got = run_one(*engine, greedy(prompt, 4)), dense = run_one(*engine, prompt_by("dense", prompt, 4));
  expect_same(got, dense);
  EXPECT_DOUBLE_EQ(got.stats.prefill_share(), 1.0);
}

TEST(XAttentionEngine, APrefixHitEqualsAColdRun) {
  auto engine = make_engine(options());
  const auto prompt = prompt_of(*engine, 5, 1100);
  const Result1 cold = run_one(*engine, greedy(prompt, 6));
  EXPECT_EQ(cold.stats.cached_tokens, 0);
  const Result1 hit = run_one(*engine, greedy(prompt, 6));
  EXPECT_EQ(hit.stats.cached_tokens, 1024) << "whole tiles";
  expect_same(hit, cold);
  auto longer = prompt;
  const auto more = prompt_of(*engine, 6, 300);
  longer.insert(longer.end(), more.begin(), more.end());
  const Result1 grown = run_one(*engine, greedy(longer, 6));
  EXPECT_EQ(grown.stats.cached_tokens, 1024) << "the tile that the shorter prompt left unfinished is computed anew";
  expect_same(grown, run_one(*make_engine(options()), greedy(longer, 6)));
}

TEST(XAttentionEngine, LineagesNeverShareABlock) {
  auto engine = make_engine(options(0.05));
  const auto prompt = prompt_of(*engine, 7, 900);
  const Result1 sparse = run_one(*engine, greedy(prompt, 4));
  const Result1 dense = run_one(*engine, prompt_by("dense", prompt, 4));
  EXPECT_EQ(dense.stats.cached_tokens, 0) << "a dense request read sparse blocks";
  EXPECT_EQ(run_one(*engine, greedy(prompt, 4)).stats.cached_tokens, 896);
  EXPECT_EQ(run_one(*engine, prompt_by("dense", prompt, 4)).stats.cached_tokens, 896);
  auto other = make_engine(options(0.05));
  EXPECT_EQ(run_one(*other, prompt_by("dense", prompt, 4)).stats.cached_tokens, 0);
  const Result1 after = run_one(*other, greedy(prompt, 4));
  EXPECT_EQ(after.stats.cached_tokens, 0) << "a sparse request read dense blocks";
  expect_same(after, sparse);
}

// Two configurations, dense prompts and sparse answers in the same steps, in a pool too small for them.
TEST(XAttentionEngine, WhatRunsBesideItAndPreemptionChangeNothing) {
  EngineOptions o = options();
  MethodOptions tight = o.methods[0], gsa;
  tight.label = "tight";
  tight.xattention.threshold = 0.1;
  tight.xattention.block_size = 64;
  gsa.name = gsa.label = "gsa";
  gsa.gsa.budget_tokens = 96;
  gsa.gsa.overlap = true;
  o.methods.push_back(tight);
  o.methods.push_back(gsa);
  o.enable_prefix_caching = false;
  o.max_num_batched_tokens = 256;
  o.sparse_min_context = 64;
  const std::pair<const char*, const char*> kinds[] = {
      {kLabel, "dense"}, {"tight", "gsa"}, {"dense", "gsa"}, {"tight", "dense"}, {kLabel, "gsa"}};
  auto roomy = make_engine(o);
  std::vector<Request> requests;
  std::vector<Result1> want;
  for (const auto& [prefill, decode] : kinds) {
    const auto n = static_cast<int64_t>(requests.size());
    requests.push_back(greedy(prompt_of(*roomy, 20 + n, 420 + 70 * n), 30));
    requests.back().prefill_method = prefill;
    requests.back().decode_method = decode;
    want.push_back(run_one(*roomy, requests.back()));
  }
  o.kv_cache_memory_bytes = roomy->stats().block_bytes * 90;  // five requests want about 190 blocks
  auto starved = make_engine(o);
  std::vector<RequestId> ids;
  for (const Request& r : requests) ids.push_back(*starved->submit(r));
  const Answers got = run_all(*starved);
  for (size_t i = 0; i < ids.size(); ++i) {
    const Result1& r = got.at({ids[i].value, 0});
    EXPECT_EQ(r.tokens, want[i].tokens) << kinds[i].first << " " << kinds[i].second << " " << r.error.message();
    EXPECT_EQ(r.stats.prefill_pairs_read, want[i].stats.prefill_pairs_read) << i << " preemptions " << r.stats.preemptions;
  }
  EXPECT_EQ(starved->stats().blocks_in_use, 0);
}

TEST(XAttentionEngine, ItServesNoAnswers) {
  EngineOptions o = options();
  o.decode_method = kLabel;
  const auto engine = Engine::create(o);
  ASSERT_FALSE(engine.ok());
  EXPECT_NE(engine.status().message().find("--decode-method"), std::string::npos) << engine.status().message();
}

}  // namespace
}  // namespace fovea::testing
