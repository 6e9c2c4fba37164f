// Every call of a step that can fail is made to, once or for good, on the fake device: memory, copies, events, graphs,
// operations, methods. Whatever fails, no token of any answer is wrong, the others go on, what was not computed is not
// published, nothing is lost, and a device that works again serves again.
//
// FOVEA_FAULT_ROUNDS: seeded rounds (1000; sanitized 60).
#include "engine_test_util.h"

#include "sparse/gsa_on_device/gsa_on_device.h"

#include <optional>
#include <random>

namespace fovea::testing {
namespace {

constexpr const char* kCheckpoint = "qwen3_llama3_8h2kv_d64";
constexpr int kPrompts = 8, kSuffixes = 3;
constexpr int32_t kMaxTokens = 40;
constexpr int kRoundsOfAnEngine = 20;

int64_t rounds() {
  const char* value = std::getenv("FOVEA_FAULT_ROUNDS");
  return value ? std::atoll(value) : kSanitized ? 60 : 1000;
}

// gsa_on_device, whose calls can fail too.
class FailingMethod final : public Method {
 public:
  FailingMethod(GsaOptions options, FakeDevice& device) : inner_(std::move(options)), device_(device) {}
  std::string_view name() const override { return inner_.name(); }
  std::string lineage() const override { return inner_.lineage(); }
  Status attach(const ModelShape& shape, const MethodLimits& limits, Device& device, StepMemory& staging) override {
    return inner_.attach(shape, limits, device, staging);
  }
  std::vector<PlaneSpec> planes() const override { return inner_.planes(); }
  bool codes_view(std::byte* plane, CodesView* out) const override { return inner_.codes_view(plane, out); }
  void on_kv_written(const KvWritten& written, Ops& ops, Stream& stream) override { inner_.on_kv_written(written, ops, stream); }
  Status step_begin(const StepRows& step) override {
    FOVEA_TRY(device_.fallible("step_begin"));
    return inner_.step_begin(step);
  }
  void step_finish(bool ok) override { inner_.step_finish(ok); }
  uint64_t graph_key() const override { return inner_.graph_key(); }
  Status select(const SelectInputs& in, Ops& ops, Stream& stream, Selection* out) override {
    FOVEA_TRY(device_.fallible("select"));
    return inner_.select(in, ops, stream, out);
  }
  int64_t estimate_blocks(int64_t tokens, int32_t budget) const override { return inner_.estimate_blocks(tokens, budget); }
  int64_t summary_bytes(int64_t row_len) const override { return inner_.summary_bytes(row_len); }

 private:
  GsaOnDevice inner_;
  FakeDevice& device_;
};

EngineOptions options(bool sparse) {
  EngineOptions o = exact_options(tiny_checkpoint(kCheckpoint));
  o.device = "cpu";
  o.block_size = 8;  // so that short contexts are sparse
  o.max_model_len = 160;
  o.max_num_batched_tokens = 48;
  o.max_num_seqs = 5;
  o.sparse_min_context = 16;
  o.swap_space_bytes = int64_t{1} << 20;
  if (sparse) {
    MethodOptions m;
    m.name = "gsa_on_device";
    m.gsa.budget_tokens = 24;
    m.gsa.min_blocks = 2;
    o.methods = {m};
    o.decode_method = "gsa_on_device";
    o.enable_prefix_caching = false;
  }
  return o;
}

std::unique_ptr<EngineImpl> make_failing_engine(EngineOptions o, uint64_t seed) {
  EngineParts parts;
  auto device = std::make_unique<FakeDevice>(seed);
  FakeDevice& fake = *device;
  parts.device = std::move(device);
  static ThreadPool pool(1);
  parts.make_ops = [&fake](Device&) { return std::make_unique<FakeOps>(fake, make_cpu_ops(pool, Numerics::f32)); };
  parts.make_method = [&fake](const MethodOptions& m) -> Result<std::unique_ptr<Method>> {
    if (m.name == "dense") return std::unique_ptr<Method>();
    return std::unique_ptr<Method>(std::make_unique<FailingMethod>(m.gsa, fake));
  };
  auto engine = std::make_unique<EngineImpl>(std::move(o), std::move(parts));
  const Status made = engine->init();
  EXPECT_TRUE(made.ok()) << made.message();
  return engine;
}

// What was asked, and what it says with a CPU engine to itself.
struct Asked {
  int prompt = 0;
  int suffix = -1;  // of a fork of `prompt`
  int manner = 0;   // 0 greedy, 1 with a repetition penalty, 2 sampled
  int32_t max_tokens = kMaxTokens;
  bool hold = false;
};

class Oracle {
 public:
  explicit Oracle(bool sparse) : engine_(make_engine(options(sparse))) {
    for (int i = 0; i < kPrompts; ++i) prompts_.push_back(random_prompt(70 + i, 3 + 8 * i, 64));
    for (int i = 0; i < kSuffixes; ++i) suffixes_.push_back(random_prompt(90 + i, 1 + 6 * i, 64));
  }

  Request request(const Asked& a) const {
    Request r = greedy(a.suffix < 0 ? prompts_[a.prompt] : suffixes_[a.suffix], a.max_tokens);
    r.hold = a.hold;
    if (a.manner == 1) r.sampling.repetition_penalty = 1.3f;
    if (a.manner == 2) r.sampling.temperature = 0.9f;
    r.sampling.seed = 11;
    return r;
  }

  std::vector<TokenId> tokens(const Asked& a) {
    if (a.max_tokens == 0) return {};
    auto& known = known_[{a.prompt, a.suffix, a.manner}];
    if (known.empty()) {
      Asked whole = a;
      whole.max_tokens = kMaxTokens;
      Request r = request(whole);
      if (a.suffix >= 0) {
        r.fork_of = *engine_->submit(request({.prompt = a.prompt, .max_tokens = 0, .hold = true}));
        run_all(*engine_);
      }
      known = run_one(*engine_, r).tokens;
      if (r.fork_of) engine_->release(*r.fork_of);
    }
    return {known.begin(), known.begin() + a.max_tokens};
  }

 private:
  std::unique_ptr<Engine> engine_;
  std::vector<std::vector<TokenId>> prompts_, suffixes_;
  std::map<std::tuple<int, int, int>, std::vector<TokenId>> known_;
};

// A stretch of an engine's life: requests come, are held, forked, released and aborted, and one call or all from one on fail.
class Round {
 public:
  Round(EngineImpl& engine, Oracle& oracle, uint64_t seed)
      : engine_(engine), device_(static_cast<FakeDevice&>(engine.device())), oracle_(oracle), rng_(seed) {}

  // Returns how many calls could have failed. `at` -1: none does. `only`: of calls of this name.
  int64_t run(int64_t at, bool for_good, const char* only = "") {
    for_good_ = for_good;
    device_.fail_call(at, for_good, only);
    for (int turn = 0; turn < 10 && ok(); ++turn) {
      for (uint64_t n = turn < 6 ? rng_() % 4 : 0; n > 0; --n) arrive();
      if (rng_() % 12 == 0 && !live_.empty()) abort_one();
      if (rng_() % 6 == 0 && !held_.empty()) release_one();
      step();
    }
    finish();
    const int64_t calls = device_.calls();
    struck_ = device_.faults() > 0;
    const std::string what = device_.last_fault();
    device_.recover();
    finish();
    SCOPED_TRACE(struck_ ? "after " + what + " failed" : "nothing failed");
    expect_nothing_lost();
    serve_again();
    return calls;
  }
  bool struck() const { return struck_; }
  int failed() const { return failed_; }

 private:
  struct Live {
    Asked asked;
    int open = 1;
    bool after_fault = false;  // asked for when the fault was over
    std::map<int32_t, size_t> said;
  };

  static bool ok() { return !::testing::Test::HasFailure(); }

  void submit(const Asked& asked, int answers = 1, std::optional<RequestId> parent = {}) {
    Request r = oracle_.request(asked);
    r.sampling.n = answers;
    r.fork_of = parent;
    const auto id = engine_.submit(std::move(r));
    ASSERT_TRUE(id.ok()) << id.status().message();
    live_[*id] = {asked, answers, !for_good_ && quiet_steps_ >= 3, {}};
  }

  void arrive() {
    Asked a;
    a.prompt = static_cast<int>(rng_() % kPrompts);
    a.max_tokens = 1 + static_cast<int32_t>(rng_() % (rng_() % 2 ? 8 : kMaxTokens));
    if (!held_.empty() && rng_() % 3 == 0) {
      const auto& [id, prompt] = held_[rng_() % held_.size()];
      a.prompt = prompt;
      a.suffix = static_cast<int>(rng_() % kSuffixes);
      return submit(a, 1, id);
    }
    if (rng_() % 5 == 0) {
      a.max_tokens = 0;
      a.hold = true;
      return submit(a);
    }
    a.manner = static_cast<int>(rng_() % 8);
    if (a.manner > 2) a.manner = 0;
    submit(a, a.manner == 0 && rng_() % 6 == 0 ? 2 : 1);
  }

  void abort_one() {
    auto it = live_.begin();
    std::advance(it, static_cast<int64_t>(rng_() % live_.size()));
    engine_.abort(it->first);
  }

  void release_one() {
    const size_t i = rng_() % held_.size();
    engine_.release(held_[i].first);
    held_.erase(held_.begin() + static_cast<int64_t>(i));
  }

  void step() {
    std::vector<Output> outputs;
    const auto more = engine_.step(&outputs);
    ASSERT_TRUE(more.ok()) << more.status().message();
    for (const Output& o : outputs) take(o);
    const Status consistent = engine_.blocks().check_consistency();
    ASSERT_TRUE(consistent.ok()) << consistent.message();
    quiet_steps_ = device_.faults() > 0 ? quiet_steps_ + 1 : 0;
    more_ = *more;
  }

  void take(const Output& o) {
    const auto it = live_.find(o.request);
    ASSERT_NE(it, live_.end()) << "an output of a request that is over";
    Live& l = it->second;
    const std::vector<TokenId> want = oracle_.tokens(l.asked);
    size_t& said = l.said[o.index];
    for (TokenId token : o.tokens) {
      ASSERT_LT(said, want.size());
      ASSERT_EQ(token, want[said]) << "prompt " << l.asked.prompt << " suffix " << l.asked.suffix << " token " << said
                                   << " of request " << o.request.value;
      ++said;
    }
    if (!o.finished) return;
    EXPECT_EQ(o.error.ok(), o.reason != FinishReason::failed);
    if (o.reason == FinishReason::failed) expect_reason(l, o);
    if (o.reason == FinishReason::length) { EXPECT_EQ(said, want.size()); }
    if (--l.open > 0) return;
    if (l.asked.hold && o.reason == FinishReason::length) held_.emplace_back(o.request, l.asked.prompt);
    live_.erase(it);
  }

  // Only what met the fault fails by it. A fork fails too where its parent is gone or never was, and anything where held
  // documents leave too little of the pool.
  void expect_reason(const Live& l, const Output& o) {
    ++failed_;
    if (l.asked.suffix >= 0 && o.error.code() != StatusCode::internal) return;
    if (o.error.code() == StatusCode::resource_exhausted && o.error.message().find("nothing can give way") != std::string::npos)
      return;
    EXPECT_GT(device_.faults(), 0) << o.error.message();
    EXPECT_FALSE(l.after_fault) << "the fault was over: " << o.error.message();
  }

  void finish() {
    more_ = true;
    for (int i = 0; i < 300 && (more_ || !live_.empty()) && ok(); ++i) step();
    EXPECT_TRUE(live_.empty()) << live_.size() << " requests never end";
  }

  void expect_nothing_lost() {
    while (!held_.empty()) release_one();
    finish();
    const EngineStats s = engine_.stats();
    EXPECT_EQ(s.blocks_in_use, 0);
    EXPECT_EQ(s.swapped_bytes, 0);
  }

  // Every prompt again: blocks that it finds must have been computed.
  void serve_again() {
    for_good_ = false;
    failed_before_ = failed_;
    for (int p = 0; p < kPrompts; p += 3) submit({.prompt = p + static_cast<int>(rng_() % 2), .max_tokens = 2});
    finish();
    EXPECT_EQ(failed_, failed_before_);
    expect_nothing_lost();
  }

  EngineImpl& engine_;
  FakeDevice& device_;
  Oracle& oracle_;
  std::mt19937_64 rng_;
  std::map<RequestId, Live> live_;
  std::vector<std::pair<RequestId, int>> held_;
  bool for_good_ = false, struck_ = false, more_ = false;
  int quiet_steps_ = 0, failed_ = 0, failed_before_ = 0;
};

class FaultInjection : public ::testing::TestWithParam<bool> {
 protected:
  static std::unique_ptr<EngineImpl> make(uint64_t seed) {
    EngineOptions o = options(GetParam());
    // Room for 128 tokens, so that answers are preempted.
    const int64_t block = make_engine(o)->stats().block_bytes;
    o.kv_cache_memory_bytes = 16 * block;
    return make_failing_engine(o, seed);
  }
};
INSTANTIATE_TEST_SUITE_P(Of, FaultInjection, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "SparseWithSwap" : "DenseWithPrefixCache"; });

// What `asked` says on an engine of its own whose call `at` fails, and then once more. Returns how many calls could have failed.
int64_t ask_twice(EngineImpl& engine, Oracle& oracle, const std::vector<Asked>& asked, int64_t at, bool for_good,
                  const char* only = "") {
  auto& device = static_cast<FakeDevice&>(engine.device());
  device.fail_call(at, for_good, only);
  std::vector<RequestId> ids;
  for (const Asked& a : asked) ids.push_back(*engine.submit(oracle.request(a)));
  const Answers answers = run_all(engine);
  const int64_t calls = device.calls();
  EXPECT_EQ(answers.size(), asked.size());
  for (size_t i = 0; i < asked.size(); ++i) {
    const Result1& r = answers.at({ids[i].value, 0});
    auto want = oracle.tokens(asked[i]);
    if (r.reason == FinishReason::failed) want.resize(std::min(want.size(), r.tokens.size()));
    EXPECT_EQ(r.tokens, want);
    if (at < 0) { EXPECT_EQ(r.reason, FinishReason::length); }
  }
  device.recover();
  EXPECT_EQ(engine.stats().blocks_in_use, 0);
  EXPECT_EQ(engine.stats().swapped_bytes, 0);
  for (const Asked& a : asked) EXPECT_EQ(run_one(engine, oracle.request(a)).tokens, oracle.tokens(a));
  return calls;
}

// Each call of the first steps of an engine: prefill, an eager decode step, a captured and a replayed one.
TEST_P(FaultInjection, EachCallOfTheFirstSteps) {
  Oracle oracle(GetParam());
  const std::vector<Asked> asked = {{.prompt = 3, .max_tokens = 5}, {.prompt = 5, .max_tokens = 5}};
  const int64_t calls = ask_twice(*make(1), oracle, asked, -1, false);
  EXPECT_GT(calls, 80);
  for (int64_t at = 0; at < calls && !HasFailure(); at += kSanitized ? 5 : 1) {
    for (const bool for_good : {false, true}) {
      SCOPED_TRACE("call " + std::to_string(at) + (for_good ? " and all after it" : ""));
      (void)ask_twice(*make(1), oracle, asked, at, for_good);
    }
  }
}

// Each batch of moves between places while answers outgrow the pool: copies on write, and with a sparse method swap.
TEST_P(FaultInjection, EachMove) {
  Oracle oracle(GetParam());
  std::vector<Asked> asked;
  for (int prompt : {0, 1, 2, 3}) asked.push_back({.prompt = prompt, .max_tokens = 40});
  for (uint64_t seed = 1; seed <= 6 && !HasFailure(); ++seed) {
    auto engine = make(seed);
    const int64_t moves = ask_twice(*engine, oracle, asked, -1, false, "transfer");
    EXPECT_GT(engine->stats().preemptions, 0);
    if (GetParam()) { EXPECT_GT(moves, 2); }
    for (int64_t at = 0; at < moves && !HasFailure(); ++at) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", move " + std::to_string(at));
      (void)ask_twice(*make(seed), oracle, asked, at, false, "transfer");
    }
  }
}

TEST_P(FaultInjection, SeededRounds) {
  Oracle oracle(GetParam());
  std::mt19937_64 rng(GetParam() ? 17 : 19);
  std::unique_ptr<EngineImpl> engine;
  int64_t calls = 0, struck = 0, failed = 0, preemptions = 0;
  const int64_t count = rounds() / 2;
  for (int64_t i = 0; i < count && !HasFailure(); ++i) {
    const uint64_t seed = rng();
    if (i % kRoundsOfAnEngine == 0) {
      if (engine) preemptions += engine->stats().preemptions;
      engine = make(seed);
      calls = Round(*engine, oracle, seed).run(-1, false);
    }
    // Any call of the round, or one of the first of a rare kind.
    static constexpr const char* kRare[] = {"transfer",        "wait",    "record", "allocate",
                                            "allocate_pinned", "capture", "launch", "select"};
    const char* only = rng() % 2 ? "" : kRare[rng() % std::size(kRare)];
    // A warm prefix cache saves calls.
    const int64_t at = static_cast<int64_t>(rng() % (*only ? 6 : static_cast<uint64_t>(calls * 2 / 3)));
    const bool for_good = rng() % 4 == 0;
    SCOPED_TRACE("round " + std::to_string(i) + ", call " + std::to_string(at) + " of " + (*only ? only : "all") +
                 (for_good ? " and all after it" : ""));
    Round round(*engine, oracle, seed);
    (void)round.run(at, for_good, only);
    struck += round.struck();
    failed += round.failed();
  }
  if (engine) preemptions += engine->stats().preemptions;
  std::printf("%lld rounds, a fault in %lld, %lld answers failed, %lld preemptions\n", static_cast<long long>(count),
              static_cast<long long>(struck), static_cast<long long>(failed), static_cast<long long>(preemptions));
  EXPECT_GT(struck, count / 3);
  EXPECT_GT(failed, count / 2);
  EXPECT_GT(preemptions, count / 50);
}

}  // namespace
}  // namespace fovea::testing
