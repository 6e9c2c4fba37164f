// Method gsa inside the engine: summaries that stay true to the cache, answers that do not depend on what runs beside them,
// layers that reuse a choice, what a request's state says, and decode rows within a cap.
#include "gsa_engine_test_util.h"

#include "engine/engine_impl.h"
#include "kernels/ref/hash.h"
#include "kernels/ref/summary.h"
#include "watched_ops_test_util.h"

#include <set>

namespace fovea::testing {
namespace {

// Memory of an engine's device that nothing writes to meanwhile.
template <typename T>
std::vector<T> on_host(Device& device, const void* from, int64_t count) {
  std::vector<T> to(static_cast<size_t>(count));
  const auto stream = device.make_stream();
  device.copy(to.data(), from, sizeof(T) * to.size(), CopyKind::to_host, *stream);
  EXPECT_TRUE(stream->synchronize().ok());
  return to;
}

// Every summary of a sequence's blocks equals one made afresh from the keys in the cache.
void expect_true_summaries(EngineImpl& e, SequenceId seq) {
  const PageTable& table = e.blocks().table(seq);
  const int64_t tokens = e.blocks().num_tokens(seq), bs = e.blocks().block_size();
  std::vector<int64_t> slots;
  for (int64_t t = 0; t < tokens; ++t) slots.push_back(int64_t{table.block(static_cast<int32_t>(t / bs)).value} * bs + t % bs);
  const HashRotation rotation = HashRotation::make(64, 128).value();
  for (int32_t layer = 0; layer < e.model().shape.num_layers; ++layer) {
    KvView kv = e.kv().kv_view(LayerIdx{layer});
    const std::vector<float> keys = on_host<float>(e.device(), kv.k, e.blocks().num_blocks() * kv.block_stride);
    kv.k = const_cast<float*>(keys.data());
    const auto plane = [&](const char* name) { return e.kv().plane(*e.kv().find_plane(name), LayerIdx{layer}); };
    const int64_t cells = int64_t{e.blocks().num_blocks()} * kv.kv_heads;
    std::vector<float> mean(cells * 64), minmax(cells * 128);
    std::vector<uint64_t> codes(cells * 2);
    BlockSummariesParams p;
    p.tokens = static_cast<int32_t>(slots.size());
    p.slot_mapping = slots.data();
    p.kv = kv;
    p.mean = mean.data();
    p.minmax = minmax.data();
    p.mean_codes = codes.data();
    p.codec = rotation.codec();
    ref::block_summaries(p);
    const auto means = on_host<float>(e.device(), plane("mean"), cells * 64);
    const auto boxes = on_host<float>(e.device(), plane("minmax"), cells * 128);
    const auto mean_codes = on_host<uint64_t>(e.device(), plane("mean_codes.128.7"), cells * 2);
    for (int32_t b = 0; b < table.size(); ++b) {
      for (int64_t cell = int64_t{table.block(b).value} * kv.kv_heads; cell < (int64_t{table.block(b).value} + 1) * kv.kv_heads;
           ++cell) {
        const auto equal = [&](const auto& got, const auto& want, int64_t n) {
          return std::equal(got.begin() + cell * n, got.begin() + (cell + 1) * n, want.begin() + cell * n);
        };
        ASSERT_TRUE(equal(means, mean, 64)) << "layer " << layer << " block " << b;
        ASSERT_TRUE(equal(boxes, minmax, 128)) << "layer " << layer << " block " << b;
        ASSERT_TRUE(equal(mean_codes, codes, 2)) << "layer " << layer << " block " << b;
      }
    }
  }
}

TEST(GsaEngine, SummariesFollowTheCacheThroughChunksDecodesAndForks) {
  EngineOptions o = gsa_options(gsa_methods(false));
  o.max_num_batched_tokens = 50;  // chunks that end inside blocks
  auto engine = make_engine(o);
  auto& impl = dynamic_cast<EngineImpl&>(*engine);
  const auto vocab = engine->model().vocab_size;
  Request document = greedy(random_prompt(1, 237, vocab), 0);
  document.hold = true;
  const auto held = engine->submit(document);
  ASSERT_TRUE(held.ok());
  run_all(*engine);
  expect_true_summaries(impl, SequenceId{1});
  for (int i = 0; i < 2; ++i) {  // the document's last block is copied when each is appended to
    Request question = greedy(random_prompt(9 + i, 7, vocab), 23);
    question.fork_of = *held;
    question.trace = true;  // on a device no step runs ahead
    ASSERT_TRUE(engine->submit(question).ok());
  }
  std::vector<Output> outputs;
  for (int step = 0; step < 20; ++step) ASSERT_TRUE(engine->step(&outputs).ok());
  for (uint64_t seq : {1, 2, 3}) expect_true_summaries(impl, SequenceId{seq});
  run_all(*engine);
}

TEST(GsaEngine, OverlapIsTheSameInBothMethods) {
  MethodOptions on_device = gsa(R::hash, "on_device"), gsa_overlap = gsa(R::hash, "gsa_overlap");
  on_device.name = "gsa_on_device";
  on_device.gsa.overlap = gsa_overlap.gsa.overlap = true;
  EngineOptions o = gsa_options({on_device, gsa_overlap, gsa(R::hash, "no_overlap")});
  o.enable_prefix_caching = false;
  auto engine = make_engine(o);
  std::map<std::string, std::vector<TokenId>> tokens;
  for (const char* label : {"on_device", "gsa_overlap", "no_overlap"}) {
    Request r = greedy(random_prompt(3, 300, engine->model().vocab_size), 20);
    r.decode_method = label;
    tokens[label] = run_one(*engine, r).tokens;
  }
  EXPECT_EQ(tokens["on_device"], tokens["gsa_overlap"]);
  EXPECT_NE(tokens["on_device"], tokens["no_overlap"]) << "else this test sees nothing";
}

TEST(GsaEngine, AnswersDoNotDependOnTheBatch) {
  for (const bool overlap : {false, true}) {
    EngineOptions o = gsa_options(gsa_methods(overlap));
    o.enable_prefix_caching = false;  // a hit would be an extension, which chooses
    auto engine = make_engine(o);
    const auto vocab = engine->model().vocab_size;
    std::map<std::string, std::vector<TokenId>> alone;
    for (const auto& [representation, name] : kGsaKinds) {
      Request r = greedy(random_prompt(3, 300, vocab), 20);
      r.decode_method = name;
      const Result1 one = run_one(*engine, r);
      EXPECT_LT(one.stats.kv_bytes_read, one.stats.kv_bytes_dense) << name;
      alone[name] = one.tokens;
    }
    std::map<uint64_t, std::string> names;
    for (const auto& [representation, name] : kGsaKinds) {
      Request r = greedy(random_prompt(3, 300, vocab), 20);
      r.decode_method = name;
      names[engine->submit(r)->value] = name;
      Request other = greedy(random_prompt(4, 150, vocab), 9);
      other.decode_method = name;
      ASSERT_TRUE(engine->submit(other).ok());
    }
    for (const auto& [id, result] : run_all(*engine)) {
      if (names.contains(id.first)) {
        EXPECT_EQ(result.tokens, alone[names[id.first]]) << names[id.first] << (overlap ? " overlap" : "");
      }
    }
  }
}

// Swapped out and in: a block's summaries move with it, and what a request chose, counted or carried over stays its own.
TEST(GsaEngine, PreemptionChangesNothing) {
  for (const bool overlap : {false, true}) {
    EngineOptions o = gsa_options(gsa_methods(overlap));
    o.enable_prefix_caching = false;
    o.max_num_seqs = 6;
    auto roomy = make_engine(o);
    std::vector<Request> requests;
    std::vector<Result1> want;
    for (size_t i = 0; i < kGsaKinds.size(); ++i) {
      requests.push_back(greedy(random_prompt(40 + i, 150 + 10 * static_cast<int64_t>(i), roomy->model().vocab_size), 40));
      requests.back().decode_method = kGsaKinds[i].second;
      want.push_back(run_one(*roomy, requests.back()));
    }
    o.kv_cache_memory_bytes = roomy->stats().block_bytes * 36;  // six requests want about 85 blocks
    auto starved = make_engine(o);
    std::vector<RequestId> ids;
    for (const Request& r : requests) ids.push_back(*starved->submit(r));
    const Answers got = run_all(*starved);
    int64_t preemptions = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      const Result1& r = got.at({ids[i].value, 0});
      EXPECT_EQ(r.tokens, want[i].tokens) << kGsaKinds[i].second << (overlap ? " overlap " : " ") << r.error.message();
      preemptions += r.stats.preemptions;
    }
    EXPECT_GT(preemptions, 0);
    EXPECT_EQ(starved->stats().swapped_bytes, 0);
  }
}

TEST(GsaEngine, AWholeBudgetIsDense) {
  EngineOptions o = gsa_options(gsa_methods(true));
  o.enable_prefix_caching = false;
  auto engine = make_engine(o);
  const auto prompt = random_prompt(5, 200, engine->model().vocab_size);
  Request dense = greedy(prompt, 12);
  dense.decode_method = "dense";
  const Result1 want = run_one(*engine, dense);
  for (const auto& [representation, name] : kGsaKinds) {
    Request r = greedy(prompt, 12);
    r.decode_method = name;
    r.budget_tokens = 1024;
    const Result1 got = run_one(*engine, r);
    EXPECT_EQ(got.tokens, want.tokens);
    for (size_t i = 0; i < want.logits.size(); ++i) EXPECT_EQ(max_difference(got.logits[i], want.logits[i]), 0.0f) << name;
  }
}

TEST(GsaEngine, OneMethodPerCodecAndASecondBesideTheFusedOne) {
  std::vector<MethodOptions> methods = {gsa(R::hash, "first"), gsa(R::hash, "second"), gsa(R::hash, "alone")};
  methods[0].gsa.hash_seed = 8;
  auto both = make_engine(gsa_options({methods[0], methods[1]}));  // seed 8 is kept by the fused write, 7 from the cache
  auto alone = make_engine(gsa_options({methods[2]}));
  const auto prompt = random_prompt(6, 300, both->model().vocab_size);
  Request r = greedy(prompt, 20);
  r.decode_method = "second";
  const Result1 got = run_one(*both, r);
  r.decode_method = "alone";
  const Result1 want = run_one(*alone, r);
  EXPECT_EQ(got.tokens, want.tokens);
  for (size_t i = 0; i < want.logits.size(); ++i) EXPECT_EQ(max_difference(got.logits[i], want.logits[i]), 0.0f);
}

// A layer that reuses reads what the layer before it chose, and scans nothing.
TEST(GsaEngine, LayersReuseAChoice) {
  for (const char* name : {"gsa", "gsa_on_device"}) {
    MethodOptions m = gsa(R::hash, "m");
    m.name = name;
    m.gsa.reuse_layers = {1};
    auto engine = make_engine(gsa_options({m}));
    ASSERT_GE(engine->model().shape.num_layers, 2);
    std::map<std::pair<int64_t, int32_t>, std::vector<int32_t>> read;
    engine->set_trace([&](const SelectionTrace& t) {
      if (t.selection->kind != Selection::Kind::list) return;
      const int64_t cell = int64_t{t.row} * t.selection->groups;
      read[{t.position, t.layer.value}] = {t.selection->units + cell * t.selection->capacity,
                                           t.selection->units + cell * t.selection->capacity + t.selection->counts[cell]};
    });
    Request r = greedy(random_prompt(3, 300, engine->model().vocab_size), 8);
    r.trace = true;
    const Result1 result = run_one(*engine, r);
    int64_t scanned = 0;
    for (int64_t position = 300; position < 307; ++position) {
      const auto chosen = read[{position, 0}];
      EXPECT_EQ(chosen.size(), 8u);
      EXPECT_EQ(chosen, (read[{position, 1}])) << name;
      scanned += (position + 1) * 2 * 8;
    }
    EXPECT_EQ(result.stats.summary_bytes_read, scanned * (engine->model().shape.num_layers - 1));
  }
}

TEST(GsaEngine, TheStateOfARequest) {
  auto engine = make_engine(gsa_options({gsa(R::mean, "mean")}));
  const auto vocab = engine->model().vocab_size;
  EXPECT_EQ(engine->request_state(RequestId{7}).status().code(), StatusCode::not_found);
  Request r = greedy(random_prompt(3, 300, vocab), 20);
  r.sampling.n = 2;
  r.trace = true;
  const RequestId id = *engine->submit(r);
  EXPECT_EQ(engine->request_state(id).status().code(), StatusCode::not_found) << "no step has taken it over";
  std::vector<Output> outputs;
  ASSERT_TRUE(engine->step(&outputs).ok());
  SparseRequestState s = *engine->request_state(id);
  EXPECT_EQ(s.request_id, id);
  EXPECT_EQ(s.scheduled_tokens, 300);
  EXPECT_EQ(s.computed_tokens, 300);
  EXPECT_EQ(s.block_ids.size(), 19u);
  ASSERT_EQ(s.block_hashes.size(), 18u) << "the last block is not full";
  EXPECT_EQ(s.block_hashes[0].size(), 64u);
  EXPECT_EQ(std::set<std::string>(s.block_hashes.begin(), s.block_hashes.end()).size(), 18u);
  EXPECT_TRUE(s.selected_blocks.empty()) << "prefill only";
  EXPECT_EQ(s.bytes_read, 0);
  EXPECT_EQ(engine->request_state(id, 2).status().code(), StatusCode::invalid_argument);

  std::set<int32_t> read;
  engine->set_trace([&](const SelectionTrace& t) {
    if (t.index != 1 || t.selection->kind != Selection::Kind::list) return;
    for (int32_t g = 0; g < t.selection->groups; ++g) {
      const int64_t cell = int64_t{t.row} * t.selection->groups + g;
      for (int32_t i = 0; i < t.selection->counts[cell]; ++i) read.insert(t.selection->units[cell * t.selection->capacity + i]);
    }
  });
  for (int step = 0; step < 3; ++step) {
    read.clear();
    ASSERT_TRUE(engine->step(&outputs).ok());
  }
  s = *engine->request_state(id, 1);
  EXPECT_EQ(s.index, 1);
  EXPECT_EQ(s.scheduled_tokens, 1);
  EXPECT_EQ(s.computed_tokens, 303);
  EXPECT_EQ(s.block_hashes.size(), 18u);
  EXPECT_GE(s.selected_blocks.size(), 8u);
  EXPECT_EQ(s.selected_blocks, std::vector<int32_t>(read.begin(), read.end()));
  EXPECT_GT(s.bytes_read, 0);
  EXPECT_GT(s.bytes_saved, 0);
  EXPECT_EQ(s.prefetch, PrefetchState::none);
  run_all(*engine);
  EXPECT_EQ(engine->request_state(id).status().code(), StatusCode::not_found) << "it is over";
}

TEST(GsaEngine, AHeldRequestKeepsItsBlocks) {
  auto engine = make_engine(gsa_options({gsa(R::mean, "mean")}));
  Request r = greedy(random_prompt(3, 100, engine->model().vocab_size), 0);
  r.hold = true;
  const RequestId id = *engine->submit(r);
  run_all(*engine);
  const SparseRequestState s = *engine->request_state(id);
  EXPECT_EQ(s.computed_tokens, 100);
  EXPECT_EQ(s.block_ids.size(), 7u);
  engine->release(id);
  run_all(*engine);
  EXPECT_EQ(engine->request_state(id).status().code(), StatusCode::not_found);
}

TEST(GsaEngine, ACapOnBlocksChangesNoAnswer) {
  EngineOptions o = gsa_options({gsa(R::hash, "hash")});
  std::vector<Answers> answers;
  for (const int64_t most : {0, 10}) {
    o.max_step_kv_blocks = most;
    auto engine = make_engine(o);
    for (int i = 0; i < 3; ++i)
      ASSERT_TRUE(engine->submit(greedy(random_prompt(20 + i, 200 + 50 * i, engine->model().vocab_size), 15)).ok());
    answers.push_back(run_all(*engine));
  }
  for (const auto& [id, result] : answers[0]) EXPECT_EQ(result.tokens, answers[1].at(id).tokens);
  o.max_step_kv_blocks = -1;
  o.device = "cpu";
  const auto refused = Engine::create(o);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("--max-step-kv-blocks"), std::string::npos);
}

// What choices say will be read soon, against the products that follow.
struct SeenSoon {
  ReadSoon soon[2];
  int32_t choices = 0, followed = 0;
  bool waits = false;
  void operator()(const auto&) {}
  void operator()(const HashSelectParams& p) {
    std::ranges::copy(p.soon, soon);
    ++choices, waits = true;
  }
  void operator()(const LinearParams& p) {
    if (!waits || p.count != 2) return;
    waits = false;
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(soon[i].data, p.weights[i].w.data);
      EXPECT_EQ(soon[i].type, p.weights[i].w.type);
      EXPECT_EQ(soon[i].bytes, p.weights[i].w.rows * p.weights[i].w.row_bytes());
    }
    ++followed;
  }
};

TEST(GsaEngine, ChoicesKnowWhatTheirLayerReadsBehindAttention) {
  EngineOptions o = gsa_options({gsa(R::hash, "hash")});
  o.device = "cpu";
  SeenSoon seen;
  EngineParts parts;
  parts.make_ops = [&](Device&) { return std::make_unique<WatchedOps<SeenSoon>>(seen); };
  EngineImpl engine(std::move(o), std::move(parts));
  ASSERT_EQ(engine.init().message(), "");
  run_one(engine, greedy(random_prompt(3, 300, engine.model().vocab_size), 4));
  EXPECT_GT(seen.choices, 0);
  EXPECT_EQ(seen.followed, seen.choices);
}

TEST(GsaEngine, WhatDoesNotFitTheModelIsRefusedByName) {
  MethodOptions m = gsa(R::mean, "mine");
  const auto refusal = [&] {
    EngineOptions o = gsa_options({m});
    o.device = "cpu";
    return Engine::create(o).status().message();
  };
  m.gsa.reuse_layers = {0};
  EXPECT_NE(refusal().find("reuse_layers"), std::string::npos);
  m.gsa.reuse_layers = {};
  m.gsa.prefetch_workers = 0;
  const std::string message = refusal();
  EXPECT_NE(message.find("mine"), std::string::npos) << message;
  EXPECT_NE(message.find("prefetch_workers 0"), std::string::npos) << message;
}

}  // namespace
}  // namespace fovea::testing
