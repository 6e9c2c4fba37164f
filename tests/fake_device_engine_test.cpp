// The engine on a device that is not the host, on any machine: its answers are the CPU's, its decode steps wait for nothing,
// and nothing on the host looks at the device's memory (a crash). Other tests of the engine run there too:
// FOVEA_TEST_DEVICE=fake.
#include "gsa_engine_test_util.h"
#include "latent_engine_test_util.h"
#include "store/store_test_util.h"

#include <random>

namespace fovea::testing {
namespace {

constexpr const char* kCheckpoint = "qwen3_llama3_8h2kv_d64";

EngineOptions options() {
  EngineOptions o = exact_options(tiny_checkpoint(kCheckpoint));
  o.device = "cpu";
  o.max_model_len = 512;
  o.max_num_batched_tokens = 64;
  o.max_num_seqs = 8;
  MethodOptions m;
  m.name = "gsa_on_device";
  m.gsa.budget_tokens = 64;
  m.gsa.codes = GsaCodes::symmetric;
  o.methods = {m};
  m.label = "asymmetric";  // a second kind of codes
  m.gsa.codes = GsaCodes::asymmetric;
  m.gsa.length_factor = true;
  o.methods.push_back(m);
  o.sparse_min_context = 80;
  o.enable_prefix_caching = false;
  return o;
}

Request request(uint64_t seed, int64_t prompt, int32_t tokens, const char* method) {
  Request r = greedy(random_prompt(seed, prompt, 64), tokens);
  r.decode_method = method;
  return r;
}

const char* method_of(uint64_t n) { return n % 2 ? "dense" : "gsa_on_device"; }

TEST(FakeDeviceEngine, AnswersAsTheCpuDoes) {
  auto cpu = make_engine(options());
  auto fake = make_fake_engine(options());
  ASSERT_TRUE(cpu && fake);
  for (const char* method : {"dense", "gsa_on_device", "asymmetric"}) {
    for (int64_t prompt : {1, 15, 16, 17, 63, 64, 65, 200}) {
      SCOPED_TRACE(method + std::string(" ") + std::to_string(prompt));
      const Request r = request(static_cast<uint64_t>(prompt), prompt, 24, method);
      const Result1 want = run_one(*cpu, r), got = run_one(*fake, r);
      EXPECT_EQ(got.tokens, want.tokens);
      EXPECT_EQ(got.stats.kv_bytes_read, want.stats.kv_bytes_read);
      EXPECT_EQ(got.stats.kv_bytes_dense, want.stats.kv_bytes_dense);
      EXPECT_EQ(got.stats.summary_bytes_read, want.stats.summary_bytes_read);
      ASSERT_EQ(got.logits.size(), want.logits.size());
      for (size_t i = 0; i < got.logits.size(); ++i) EXPECT_LE(max_difference(got.logits[i], want.logits[i]), 1e-4f);
    }
  }
}

TEST(FakeDeviceEngine, GivesTheGoldenIdsOfTheShippedModel) {
  auto fake = make_fake_engine(exact_options(tiny_gqa()));
  ASSERT_TRUE(fake);
  const auto golden = read_json(tiny_gqa() + "/golden.json");
  auto want = golden.at("generated_ids").get<std::vector<TokenId>>();
  want.resize(4);
  EXPECT_EQ(run_one(*fake, greedy(golden.at("prompt_ids").get<std::vector<TokenId>>(), 4)).tokens, want);
}

TEST(FakeDeviceEngine, ABatchOfAllKindsAnswersAsTheCpuDoes) {
  auto cpu = make_engine(options());
  for (uint64_t seed = 1; seed <= (kSanitized ? 1 : 4); ++seed) {
    auto fake = make_fake_engine(options(), seed);
    ASSERT_TRUE(cpu && fake);
    std::vector<Request> requests;
    for (uint64_t i = 0; i < 10; ++i)
      requests.push_back(
          request(10 * seed + i, static_cast<int64_t>(1 + 37 * i % 190), 12 + 3 * static_cast<int32_t>(i % 5), method_of(i)));
    requests[2].sampling.n = 3;
    requests[6].given_answer = random_prompt(seed, 9, cpu->model().vocab_size);
    requests[3].sampling.repetition_penalty = 1.3f;
    for (size_t i : {2, 3, 4, 5}) {
      requests[i].sampling.temperature = 0.8f;
      requests[i].sampling.seed = 7;
    }
    requests[4].sampling.top_k = 20;
    requests[5].sampling.top_p = 0.9f;
    const auto answers = [&](Engine& e) {
      std::vector<std::vector<TokenId>> out;
      for (const Request& r : requests) EXPECT_TRUE(e.submit(r).ok());
      for (const auto& [key, r] : run_all(e)) {
        EXPECT_TRUE(r.error.ok()) << r.error.message();
        out.push_back(r.tokens);
      }
      return out;
    };
    EXPECT_EQ(answers(*fake), answers(*cpu)) << "seed " << seed;
    EXPECT_EQ(fake->stats().blocks_in_use, 0);
  }
}

// Codes in RAM, compared by the CPU's kernels: the same choices, with copies of shared blocks, swaps and shared budgets.
TEST(FakeDeviceEngine, CodesOnTheHostChooseAsThoseOnTheDevice) {
  for (const bool by_mass : {false, true}) {
    EngineOptions o = options();
    o.methods.erase(o.methods.begin() + !by_mass);
    MethodOptions& m = o.methods[0];
    m.label = "host";
    if (by_mass) m.gsa.budget_split = BudgetSplit::mass;
    o.use_reference_ops = true;  // the fake device's: the same queries to the bit
    auto cpu = make_engine(o);
    ASSERT_TRUE(cpu);
    m.gsa.scoring = GsaScoring::host;
    o.kv_cache_memory_bytes = cpu->stats().block_bytes * 30;  // too little for all: some are swapped out and in again
    auto fake = make_fake_engine(o);
    ASSERT_TRUE(fake);
    const auto answers = [](Engine& e) {
      for (uint64_t i = 0; i < 5; ++i) {
        Request r = request(i, static_cast<int64_t>(60 + 17 * i), 100, "host");
        if (i == 1) r.sampling.n = 3, r.sampling.temperature = 0.8f, r.sampling.seed = 7;
        EXPECT_TRUE(e.submit(r).ok());
      }
      return run_all(e);
    };
    const Answers want = answers(*cpu), got = answers(*fake);
    ASSERT_EQ(got.size(), want.size());
    for (auto w = want.begin(), g = got.begin(); w != want.end(); ++w, ++g) {
      EXPECT_TRUE(g->second.error.ok()) << g->second.error.message();
      EXPECT_EQ(g->second.tokens, w->second.tokens);
      EXPECT_EQ(g->second.stats.kv_bytes_read, w->second.stats.kv_bytes_read);
      EXPECT_EQ(g->second.stats.summary_bytes_read, w->second.stats.summary_bytes_read);
    }
    EXPECT_GT(fake->stats().preemptions, 0);
    EXPECT_EQ(fake->stats().blocks_in_use, 0);
    EXPECT_EQ(fake->device().counters().graph_captures, 0) << "every layer waits for its queries";
  }
}

TEST(FakeDeviceEngine, CodesOnTheHostAreRefusedWhereAStoreLooksForThem) {
  EngineOptions o = options();
  o.methods[0].gsa.scoring = GsaScoring::host;
  o.enable_prefix_caching = true;
  const TempDir dir;
  o.kv_store.dir = dir.path();
  EngineParts parts;
  parts.device = std::make_unique<FakeDevice>(1);
  parts.make_ops = [](Device& device) { return std::make_unique<FakeOps>(static_cast<FakeDevice&>(device), make_ref_ops()); };
  EngineImpl engine(std::move(o), std::move(parts));
  const std::string message = engine.init().message();
  EXPECT_NE(message.find("gsa_on_device: scoring: host"), std::string::npos) << message;
}

// The choice is made on the device, from tiles and thresholds that lie there; what prefill worked on is counted there too.
TEST(FakeDeviceEngine, SparsePrefillReadsWhatTheCpuReads) {
  EngineOptions o = options();
  o.max_num_batched_tokens = 384;
  MethodOptions m;
  m.name = m.label = "xattention";
  m.xattention.threshold = 0.4;
  m.xattention.min_context = 128;
  m.xattention.stride = 8;
  o.methods.push_back(m);
  m.label = "voted";
  m.xattention.group_vote = true;
  o.methods.push_back(m);
  auto cpu = make_engine(o);
  auto fake = make_fake_engine(o);
  ASSERT_TRUE(cpu && fake);
  for (const char* prefill : {"dense", "xattention", "voted"}) {
    SCOPED_TRACE(prefill);
    Request r = request(5, 450, 12, "gsa_on_device");
    r.prefill_method = prefill;
    int64_t traced = 0;
    r.trace = true;
    fake->set_trace([&](const SelectionTrace& t) { traced += t.prefill && t.selection->kind == Selection::Kind::list; });
    const Result1 want = run_one(*cpu, r), got = run_one(*fake, r);
    ASSERT_TRUE(got.error.ok()) << got.error.message();
    EXPECT_EQ(got.tokens, want.tokens);
    EXPECT_EQ(got.stats.prefill_pairs_read, want.stats.prefill_pairs_read);
    EXPECT_EQ(got.stats.prefill_pairs_dense, want.stats.prefill_pairs_dense);
    EXPECT_EQ(got.stats.prefill_share() < 1.0, traced > 0);
    r.trace = false;
    EXPECT_EQ(run_one(*fake, r).stats.prefill_pairs_read, want.stats.prefill_pairs_read);
  }
}

// The end comes as a surprise: a step for the next token runs already, and in the end it is a step that no one waits for.
TEST(FakeDeviceEngine, AnswersThatEndByAStopTokenLeaveNothingBehind) {
  auto cpu = make_engine(options());
  auto fake = make_fake_engine(options());
  ASSERT_TRUE(cpu && fake);
  for (uint64_t i = 0; i < 6; ++i) {
    Request r = request(80 + i, 40, 12, method_of(i));
    const std::vector<TokenId> whole = run_one(*cpu, r).tokens;
    ASSERT_EQ(whole.size(), 12u);
    r.sampling.stop_token_ids = {whole[5]};
    const auto want = run_one(*cpu, r);
    ASSERT_EQ(want.reason, FinishReason::stop);
    ASSERT_LT(want.tokens.size(), 12u);
    ASSERT_TRUE(fake->submit(r).ok());  // no tap of logits, which would read every step at once
    const Answers got = run_all(*fake);
    ASSERT_EQ(got.size(), 1u);
    EXPECT_EQ(got.begin()->second.tokens, want.tokens);
    EXPECT_EQ(fake->stats().blocks_in_use, 0);
  }
}

TEST(FakeDeviceEngine, ForksOfAHeldDocumentAnswerAsTheCpuDoes) {
  auto cpu = make_engine(options());
  auto fake = make_fake_engine(options());
  ASSERT_TRUE(cpu && fake);
  const auto answers = [](Engine& e) {
    Request document = request(1, 150, 0, "gsa_on_device");
    document.hold = true;
    const RequestId held = *e.submit(document);
    run_all(e);
    for (uint64_t i = 0; i < 4; ++i) {
      Request r = request(50 + i, static_cast<int64_t>(1 + 9 * i), 10, method_of(i));
      r.fork_of = held;
      EXPECT_TRUE(e.submit(r).ok());
    }
    std::vector<std::vector<TokenId>> out;
    for (const auto& [key, r] : run_all(e)) out.push_back(r.tokens);
    e.release(held);
    run_all(e);
    EXPECT_EQ(e.stats().blocks_in_use, 0);
    return out;
  };
  const auto want = answers(*cpu);
  ASSERT_EQ(want.size(), 4u);
  EXPECT_EQ(answers(*fake), want);
}

// A pool too small for what runs in it: sparse answers are swapped out and in, dense ones begin again.
TEST(FakeDeviceEngine, PreemptionAndSwapChangeNothing) {
  auto cpu = make_engine(options());
  ASSERT_TRUE(cpu);
  EngineOptions o = options();
  o.kv_cache_memory_bytes = cpu->stats().block_bytes * 24;
  for (const char* method : {"dense", "gsa_on_device"}) {
    SCOPED_TRACE(method);
    auto fake = make_fake_engine(o);
    ASSERT_TRUE(fake);
    std::vector<Request> requests;
    for (uint64_t i = 0; i < 6; ++i) requests.push_back(request(i, 20, 120, method));
    for (const Request& r : requests) ASSERT_TRUE(fake->submit(r).ok());
    const Answers got = run_all(*fake);
    auto g = got.begin();
    for (const Request& r : requests) EXPECT_EQ((g++)->second.tokens, run_one(*cpu, r).tokens);
    EXPECT_GT(fake->stats().preemptions, 2);
    EXPECT_EQ(fake->stats().blocks_in_use, 0);
    EXPECT_EQ(fake->stats().swapped_bytes, 0);
  }
}

// Requests that come, end and are aborted while others decode: every step of theirs, replayed or eager, gives the same.
TEST(FakeDeviceEngine, ReplayedStepsEqualEagerOnes) {
  auto cpu = make_engine(options());
  for (const bool graphs : {true, false}) {
    EngineOptions o = options();
    o.cuda_graphs = graphs;
    auto fake = make_fake_engine(o, 3);
    ASSERT_TRUE(cpu && fake);
    Answers got;
    std::vector<Output> outputs;
    std::map<uint64_t, Request> asked;
    std::vector<RequestId> ids;
    for (uint64_t turn = 0; turn < 240; ++turn) {
      if (turn < 120 && turn % 7 == 0) {
        const Request r =
            request(turn, static_cast<int64_t>(20 + 37 * (turn % 5)), 5 + static_cast<int32_t>(turn % 31), method_of(turn));
        ids.push_back(*fake->submit(r));
        asked.emplace(ids.back().value, r);
      }
      if (turn < 120 && turn % 35 == 34) fake->abort(ids[ids.size() - 2]);
      outputs.clear();
      ASSERT_TRUE(fake->step(&outputs).ok());
      collect(outputs, &got);
    }
    ASSERT_EQ(got.size(), asked.size());
    int aborted = 0;
    for (const auto& [key, r] : got) {
      auto want = run_one(*cpu, asked.at(key.first)).tokens;
      if (r.reason == FinishReason::aborted) {
        ++aborted;
        want.resize(r.tokens.size());
      }
      EXPECT_EQ(r.tokens, want) << key.first;
    }
    EXPECT_GT(aborted, 0);
    EXPECT_EQ(fake->device().counters().graph_captures > 0, graphs);
    EXPECT_EQ(fake->stats().blocks_in_use, 0);
  }
}

TEST(FakeDeviceEngine, AHundredDecodeStepsWaitForNothingAndTakeNoMemory) {
  auto fake = make_fake_engine(options());
  ASSERT_TRUE(fake);
  for (uint64_t seed : {1, 2}) ASSERT_TRUE(fake->submit(request(seed, 50, 160, "dense")).ok());
  for (uint64_t seed : {3, 4, 5}) ASSERT_TRUE(fake->submit(request(seed, 150, 160, "gsa_on_device")).ok());
  std::vector<Output> outputs;
  const auto step = [&] {
    outputs.clear();
    ASSERT_TRUE(fake->step(&outputs).ok());
  };
  for (int i = 0; i < 40 && outputs.size() < 5; ++i) step();  // prefill, until all five answer
  ASSERT_EQ(outputs.size(), 5u);
  for (int i = 0; i < 8; ++i) step();
  const DeviceCounters before = fake->device().counters();
  for (int i = 0; i < 100; ++i) {
    step();
    ASSERT_EQ(outputs.size(), 5u);
  }
  expect_replayed(*fake, before, 100);
  run_all(*fake);
}

TEST(FakeDeviceEngine, EveryKindOfGsaAnswersAsOnTheCpu) {
  for (const bool overlap : {false, true}) {
    if (kSanitized && !overlap) continue;
    SCOPED_TRACE(overlap);
    EngineOptions o = gsa_options(gsa_methods(overlap));
    o.device = "cpu";
    o.max_num_seqs = 12;
    auto cpu = make_engine(o);
    auto fake = make_fake_engine(o);
    ASSERT_TRUE(cpu && fake);
    expect_equal_answers(*cpu, *fake);
    EXPECT_GT(fake->device().counters().graph_launches, 0);
    expect_steady_gsa(*fake);
  }
}

TEST(FakeDeviceEngine, LatentModelsAnswerAsOnTheCpu) {
  for (const std::string& checkpoint : kLatentCheckpoints) {
    SCOPED_TRACE(checkpoint);
    EngineOptions o = latent_options(checkpoint);
    o.device = "cpu";
    auto cpu = make_engine(o);
    auto fake = make_fake_engine(o);
    ASSERT_TRUE(cpu && fake);
    expect_equal_latent_answers(*cpu, *fake);
    expect_steady_decodes(*fake, {"dense", "dsa"});
    EXPECT_EQ(fake->stats().blocks_in_use, 0);
    if (kSanitized) break;
  }
}

}  // namespace
}  // namespace fovea::testing
