// The engine on models with latent attention, an indexer and experts: which methods serve them, what they count, and that the
// two forms of dense attention (expanded for prompts, absorbed for answers) agree.
#include "engine_test_util.h"
#include "watched_ops_test_util.h"

#include <fovea/method_specs.h>

#include <gmock/gmock.h>

#include <algorithm>
#include <memory>

namespace fovea::testing {
namespace {

using ::testing::HasSubstr;

constexpr const char* kCheckpoint = "deepseek_dense1_bias";  // index_topk 32, latents of 64 + 16, 2 layers, 4 index heads of 32
constexpr float kTolerance = 2e-3f;

EngineOptions small() {
  EngineOptions o = exact_options(tiny_checkpoint(kCheckpoint));
  o.max_model_len = 2048;
  return o;
}

EngineOptions dense() {
  EngineOptions o = small();
  o.decode_method = o.prefill_method = "dense";
  return o;
}

Status refused(EngineOptions o) {
  o.device = "cpu";
  auto engine = Engine::create(std::move(o));
  return engine.ok() ? Status() : engine.status();
}

MethodOptions method(const std::string& name) {
  MethodOptions m;
  m.name = name;
  return m;
}

TEST(LatentEngine, TheTrainedChoiceIsTheDefault) {
  auto engine = make_engine(small());
  ASSERT_TRUE(engine);
  EXPECT_EQ(engine->options().decode_method, "dsa");
  EXPECT_EQ(engine->options().prefill_method, "dsa");
  const ModelShape& s = engine->model().shape;
  EXPECT_EQ(s.kv_heads, 1);
  EXPECT_EQ(s.head_dim, 80);
  EXPECT_EQ(s.kv_lora_rank, 64);
  EXPECT_EQ(s.kv_bytes_per_token_head, 80 * 4);  // no plane of values
  EXPECT_EQ(s.index_topk, 32);
  // Latents and index keys of 16 tokens and 2 layers, in float32.
  EXPECT_EQ(engine->stats().block_bytes, 2 * 16 * (80 + 32) * 4);
}

TEST(LatentEngine, MethodsThatReadKeysAndValuesAreRefused) {
  EngineOptions o = small();
  o.methods = {method("gsa_on_device")};
  EXPECT_EQ(refused(o).code(), StatusCode::unsupported);
  EXPECT_EQ(refused(o).message(), "gsa_on_device: DeepseekV32ForCausalLM caches latents, which only dense and dsa read");
  o = exact_options(tiny_gqa());
  o.methods = {method("dsa")};
  EXPECT_THAT(refused(o).message(), HasSubstr("dsa: the model has no indexer"));
}

TEST(LatentEngine, WithoutAnIndexerEverythingIsRead) {
  EngineOptions o = exact_options(tiny_checkpoint("deepseekv3_one_query_matrix"));
  o.max_model_len = 512;
  auto engine = make_engine(o);
  ASSERT_TRUE(engine);
  EXPECT_EQ(engine->options().decode_method, "dense");
  EXPECT_EQ(engine->options().prefill_method, "dense");
  EXPECT_EQ(engine->stats().block_bytes, 2 * 16 * 80 * 4);  // latents alone
  const auto trained = trained_method(o.model_dir);
  ASSERT_TRUE(trained.ok());
  EXPECT_EQ(*trained, "dense");
  o.decode_method = "dsa";
  EXPECT_THAT(refused(o).message(), HasSubstr("dsa: the model has no indexer"));
}

TEST(LatentEngine, ARequestHasNoBudgetForATrainedChoice) {
  auto engine = make_engine(small());
  Request r = greedy(random_prompt(1, 40, 64), 1);
  r.budget_tokens = 16;
  EXPECT_THAT(engine->submit(r).status().message(), HasSubstr("budget_tokens: 16: dsa reads what the model was trained to read"));
  r.decode_method = "dense";
  EXPECT_TRUE(engine->submit(r).ok());
}

TEST(LatentEngine, CountsTheTokensThatWereRead) {
  EngineOptions o = small();
  o.sparse_min_context = 100000;  // has no say
  auto engine = make_engine(o);
  const Result1 r = run_one(*engine, greedy(random_prompt(2, 200, 64), 11));
  ASSERT_TRUE(r.error.ok()) << r.error.message();
  EXPECT_EQ(r.stats.rows_by_method, 10);
  EXPECT_EQ(r.stats.kv_bytes_read, int64_t{10} * 2 * 32 * 80 * 4);
  int64_t keys = 0;
  for (int64_t len = 201; len <= 210; ++len) keys += len;
  EXPECT_EQ(r.stats.kv_bytes_dense, keys * 2 * 80 * 4);
  EXPECT_EQ(r.stats.summary_bytes_read, keys * 2 * 32 * 4);  // every index key is scored
  int64_t read = 0, all = 0;
  for (int64_t len = 1; len <= 200; ++len) {
    read += std::min<int64_t>(len, 32);
    all += len;
  }
  EXPECT_EQ(r.stats.prefill_pairs_read, read * 2 * 2);
  EXPECT_EQ(r.stats.prefill_pairs_dense, all * 2 * 2);
}

// 32 keys are all read, of 33 one is left out.
TEST(LatentEngine, TheChoiceBeginsWithTheFirstKeyTooMany) {
  for (const int32_t prompt : {31, 32}) {
    const Result1 r = run_one(*make_engine(small()), greedy(random_prompt(2, prompt, 64), 2));
    EXPECT_EQ(r.stats.rows_by_method, 1);
    EXPECT_EQ(r.stats.kv_bytes_read, int64_t{2} * 32 * 80 * 4) << prompt;
    EXPECT_EQ(r.stats.summary_bytes_read, prompt == 31 ? 0 : int64_t{2} * 33 * 32 * 4);
  }
}

TEST(LatentEngine, DenseAnswersEqualDensePrompts) {
  auto engine = make_engine(dense());
  auto prompt = random_prompt(3, 130, 64);
  const Result1 decoded = run_one(*engine, greedy(prompt, 12));
  for (size_t t : {1, 11}) {
    auto longer = prompt;
    longer.insert(longer.end(), decoded.tokens.begin(), decoded.tokens.begin() + static_cast<int64_t>(t));
    EngineOptions cold = dense();
    cold.enable_prefix_caching = false;
    const Result1 prefilled = run_one(*make_engine(cold), greedy(longer, 1));
    EXPECT_LE(max_difference(prefilled.logits.at(0), decoded.logits.at(t)), kTolerance) << t;
  }
}

TEST(LatentEngine, ADensePromptInAnyChunksGivesTheSame) {
  const auto prompt = random_prompt(4, 300, 64);
  const Result1 want = run_one(*make_engine(dense()), greedy(prompt, 4));
  for (int32_t chunk : {7, 64, 299}) {
    EngineOptions o = dense();
    o.max_num_batched_tokens = chunk;
    const Result1 got = run_one(*make_engine(o), greedy(prompt, 4));
    EXPECT_EQ(got.tokens, want.tokens) << chunk;
    EXPECT_LE(max_difference(got.logits.at(0), want.logits.at(0)), kTolerance) << chunk;
  }
  // And the choice matters: reading 32 tokens is another answer.
  EXPECT_GT(max_difference(run_one(*make_engine(small()), greedy(prompt, 1)).logits.at(0), want.logits.at(0)), 0.05f);
}

TEST(LatentEngine, DensePromptsOfOneStepDoNotMix) {
  EngineOptions o = dense();
  o.max_num_batched_tokens = 128;
  o.enable_prefix_caching = false;
  auto busy = make_engine(o);
  std::vector<RequestId> ids;
  for (int i = 0; i < 5; ++i) ids.push_back(*busy->submit(greedy(random_prompt(40 + i, 30 + 45 * i, 64), 4)));
  const Answers got = run_all(*busy);
  for (int i = 0; i < 5; ++i) {
    const Result1 alone = run_one(*make_engine(dense()), greedy(random_prompt(40 + i, 30 + 45 * i, 64), 4));
    EXPECT_EQ(got.at({ids[i].value, 0}).tokens, alone.tokens) << i;
  }
}

TEST(LatentEngine, TheNumberOfThreadsChangesNothing) {
  const auto prompt = random_prompt(6, 150, 64);
  EngineOptions o = small();
  const Result1 two = run_one(*make_engine(o), greedy(prompt, 4));
  o.threads = 1;
  const Result1 one = run_one(*make_engine(o), greedy(prompt, 4));
  EXPECT_EQ(one.tokens, two.tokens);
  for (size_t i = 0; i < one.logits.size(); ++i) EXPECT_EQ(max_difference(one.logits[i], two.logits[i]), 0.0f) << i;
}

// What one method prefilled, the other must not find; and a request may mix them.
TEST(LatentEngine, LineagesOfPromptsAreKeptApart) {
  auto engine = make_engine(small());
  const auto prompt = random_prompt(5, 200, 64);
  Request r = greedy(prompt, 3);
  const Result1 first = run_one(*engine, r);
  r.prefill_method = "dense";
  const Result1 mixed = run_one(*engine, r);
  EXPECT_EQ(mixed.stats.cached_tokens, 0);
  EXPECT_EQ(run_one(*engine, r).stats.cached_tokens, 192);
  r.decode_method = "dense";
  EXPECT_EQ(run_one(*engine, r).tokens, run_one(*make_engine(dense()), greedy(prompt, 3)).tokens);
  EXPECT_GT(max_difference(first.logits.at(0), mixed.logits.at(0)), 0.01f);
}

// The document was read as its answers would have been; a question that decodes otherwise must not be prefilled again.
TEST(LatentEngine, AForkThatDecodesOtherwiseSurvivesPreemption) {
  EngineOptions o = small();
  o.enable_prefix_caching = false;
  std::vector<std::vector<TokenId>> answers[2];
  int64_t preemptions = 0;
  for (const bool starved : {false, true}) {
    if (starved) o.kv_cache_memory_bytes = 2 * 16 * (80 + 32) * 4 * 18;  // 18 blocks, of which the document has 7
    auto engine = make_engine(o);
    Request document = greedy(random_prompt(50, 100, 64), 0);
    document.hold = true;
    const RequestId held = *engine->submit(document);
    run_all(*engine);
    std::vector<RequestId> ids;
    for (int i = 0; i < 4; ++i) {
      Request question = greedy(random_prompt(60 + i, 6, 64), 80);
      question.sampling.temperature = 2.0f;  // a small difference of logits is another answer
      question.sampling.seed = 70 + i;
      question.fork_of = held;
      question.decode_method = "dense";
      ids.push_back(*engine->submit(question));
    }
    const Answers got = run_all(*engine);
    for (RequestId id : ids) {
      const Result1& r = got.at({id.value, 0});
      answers[starved].push_back(r.tokens);
      preemptions += r.stats.preemptions;
    }
  }
  EXPECT_GT(preemptions, 0);
  EXPECT_EQ(answers[0], answers[1]);
}

struct Seen {
  int32_t widest_gather = 0;                      // tokens of a chunk of a prefix
  int32_t index_writes = 0, without_queries = 0;  // calls
  void operator()(const auto&) {}
  void operator()(const MlaGatherParams& p) { widest_gather = std::max(widest_gather, p.tokens); }
  void operator()(const IndexWriteParams& p) { ++index_writes, without_queries += p.heads == 0; }
};

std::unique_ptr<EngineImpl> watched_engine(EngineOptions o, Seen* seen) {
  o.device = "cpu";
  EngineParts parts;
  parts.make_ops = [seen](Device&) { return std::make_unique<WatchedOps<Seen>>(*seen); };
  auto engine = std::make_unique<EngineImpl>(std::move(o), std::move(parts));
  EXPECT_EQ(engine->init().message(), "");
  return engine;
}

// Prompts that are read whole go over their prefix chunk by chunk, as large as asked, and the answer stays.
TEST(LatentEngine, ChunksOfAPrefixAreAsSmallAsAsked) {
  EngineOptions o = dense();
  o.methods = {method("dsa")};
  o.max_num_batched_tokens = 32, o.max_num_seqs = 4;
  std::vector<TokenId> tokens[2];
  for (const int64_t capacity : {int64_t{131072}, int64_t{64}}) {
    o.methods[0].dsa.prefix_chunk_capacity = capacity;
    Seen seen;
    auto engine = watched_engine(o, &seen);
    tokens[capacity == 64] = run_one(*engine, greedy(random_prompt(8, 250, 64), 6)).tokens;
    EXPECT_EQ(seen.widest_gather, capacity == 64 ? 64 : 224);
  }
  EXPECT_EQ(tokens[0], tokens[1]);
  o.methods[0].dsa.prefix_chunk_capacity = 0;
  EXPECT_THAT(refused(o).message(), HasSubstr("prefix_chunk_capacity 0 is below 1"));
}

// Rows of at most 32 tokens read them all: the indexer leaves their keys behind and asks for nothing.
TEST(LatentEngine, ShortPromptsAskTheIndexerForNothing) {
  Seen seen;
  auto engine = watched_engine(small(), &seen);
  EXPECT_EQ(run_one(*engine, greedy(random_prompt(9, 20, 64), 4)).tokens.size(), 4u);
  EXPECT_GT(seen.index_writes, 0);
  EXPECT_EQ(seen.without_queries, seen.index_writes);
  seen = {};
  EXPECT_EQ(run_one(*engine, greedy(random_prompt(9, 80, 64), 4)).tokens.size(), 4u);
  EXPECT_EQ(seen.without_queries, 0);
}

// Recomputed where every row makes the same choice; swapped where answers were read otherwise than the prompt.
TEST(LatentEngine, PreemptionOfMixedMethodsChangesNothing) {
  for (const char* decode : {"dsa", "dense"}) {
    EngineOptions o = small();
    o.decode_method = decode;
    o.enable_prefix_caching = false;
    auto roomy = make_engine(o);
    std::vector<Result1> want;
    for (int i = 0; i < 4; ++i) want.push_back(run_one(*roomy, greedy(random_prompt(30 + i, 100 + 10 * i, 64), 40)));
    o.kv_cache_memory_bytes = roomy->stats().block_bytes * 24;
    auto starved = make_engine(o);
    std::vector<RequestId> ids;
    for (int i = 0; i < 4; ++i) ids.push_back(*starved->submit(greedy(random_prompt(30 + i, 100 + 10 * i, 64), 40)));
    const Answers got = run_all(*starved);
    int64_t preemptions = 0;
    for (int i = 0; i < 4; ++i) {
      const Result1& r = got.at({ids[i].value, 0});
      EXPECT_EQ(r.tokens, want[i].tokens) << decode << " " << i << " " << r.error.message();
      preemptions += r.stats.preemptions;
    }
    EXPECT_GT(preemptions, 0);
  }
}

}  // namespace
}  // namespace fovea::testing
