// What step() promises when a step fails: the answers that had rows in it end with an error, nothing else of it is seen, and the
// others go on as if nothing had been.
#include "engine_test_util.h"

#include "engine/engine_impl.h"
#include "sparse/registry.h"

namespace fovea::testing {
namespace {

// Calls of step_begin() and select(), counted together, that fail.
struct Faults {
  int64_t calls = 0;
  int64_t first = -1, count = 1;  // which ones; -1: none
  StatusCode code = StatusCode::io_error;

  Status next() {
    const int64_t call = calls++;
    if (first < 0 || call < first || call >= first + count) return {};
    return Status(code, "fault injected at call " + std::to_string(call));
  }
};

// Reads everything, so that its answers are those of dense attention; and fails when it is told to.
class Faulty final : public Method {
 public:
  explicit Faulty(Faults& faults) : faults_(faults) {}
  std::string_view name() const override { return "faulty"; }
  std::string lineage() const override { return "dense"; }
  bool prefills() const override { return true; }
  Status attach(const ModelShape&, const MethodLimits&, Device&, StepMemory&) override { return {}; }
  Status step_begin(const StepRows&) override { return faults_.next(); }
  Status select(const SelectInputs&, Ops&, Stream&, Selection* out) override {
    *out = Selection{};
    return faults_.next();
  }
  int64_t estimate_blocks(int64_t, int32_t) const override { return 1; }

 private:
  Faults& faults_;
};

EngineOptions options() {
  EngineOptions o = exact_options(tiny_checkpoint("qwen3_llama3_8h2kv_d64"));
  o.device = "cpu";
  o.max_model_len = 512;
  o.max_num_batched_tokens = 64;
  o.sparse_min_context = 16;
  MethodOptions faulty;
  faulty.name = "faulty";
  o.methods = {faulty};
  return o;
}

class StepFailure : public ::testing::Test {
 protected:
  std::unique_ptr<EngineImpl> make(EngineOptions o = options()) {
    EngineParts parts;
    parts.make_method = [this](const MethodOptions& m) -> Result<std::unique_ptr<Method>> {
      if (m.name != "faulty") return make_method(m);
      return std::unique_ptr<Method>(std::make_unique<Faulty>(faults_));
    };
    auto engine = std::make_unique<EngineImpl>(std::move(o), std::move(parts));
    EXPECT_TRUE(engine->init().ok());
    return engine;
  }

  Request request(uint64_t seed, int32_t tokens, const char* decode = "dense", const char* prefill = "dense") {
    Request r = greedy(random_prompt(seed, tokens, 64), 8);
    r.decode_method = decode;
    r.prefill_method = prefill;
    return r;
  }

  static RequestId submit(Engine& engine, Request r) {
    auto id = engine.submit(std::move(r));
    EXPECT_TRUE(id.ok()) << id.status().message();
    return *id;
  }
  // So many steps, none of which is an error of step().
  static void steps(Engine& engine, int count, Answers* answers) {
    std::vector<Output> outputs;
    for (int i = 0; i < count; ++i) {
      outputs.clear();
      auto more = engine.step(&outputs);
      ASSERT_TRUE(more.ok()) << more.status().message();
      collect(outputs, answers);
      const Status s = dynamic_cast<EngineImpl&>(engine).blocks().check_consistency();
      ASSERT_TRUE(s.ok()) << s.message();
    }
  }

  static void expect_failed(const Result1& r) {
    EXPECT_EQ(r.reason, FinishReason::failed);
    EXPECT_EQ(r.error.code(), StatusCode::io_error);
    EXPECT_NE(r.error.message().find("fault injected"), std::string::npos) << r.error.message();
  }

  Faults faults_;
};

TEST_F(StepFailure, ARequestInTheStepFailsByNameAndTheNextOneIsRight) {
  auto plain = make();
  const std::vector<TokenId> want = run_one(*plain, request(1, 40)).tokens;
  for (const int64_t call : {0, 1, 5}) {
    SCOPED_TRACE(call);
    auto engine = make();
    faults_ = {};
    faults_.first = call;
    const RequestId id = submit(*engine, request(1, 40, "faulty"));
    Answers answers;
    steps(*engine, 12, &answers);
    const Result1& failed = answers.at({id.value, 0});
    expect_failed(failed);
    EXPECT_LT(failed.tokens.size(), want.size());
    EXPECT_TRUE(std::equal(failed.tokens.begin(), failed.tokens.end(), want.begin())) << "what was said before is right";
    EXPECT_EQ(engine->stats().blocks_in_use, 0);
    faults_.first = -1;
    EXPECT_EQ(run_one(*engine, request(1, 40, "faulty")).tokens, want);
  }
}

TEST_F(StepFailure, NothingOfAFailedPromptIsPublished) {
  auto engine = make();
  const std::vector<TokenId> want = run_one(*make(), request(2, 50)).tokens;
  faults_.first = 1;
  const RequestId id = submit(*engine, request(2, 50, "dense", "faulty"));
  Answers answers;
  steps(*engine, 3, &answers);
  expect_failed(answers.at({id.value, 0}));
  EXPECT_TRUE(answers.at({id.value, 0}).tokens.empty());
  const Result1 again = run_one(*engine, request(2, 50));
  EXPECT_EQ(again.stats.cached_tokens, 0) << "its blocks were never computed";
  EXPECT_EQ(again.tokens, want);
}

TEST_F(StepFailure, OthersGoOn) {
  EngineOptions o = options();
  o.max_step_kv_blocks = 1;  // one decode row a step, in turn
  const std::vector<TokenId> want = run_one(*make(o), request(4, 30)).tokens;
  auto engine = make(o);
  const RequestId victim = submit(*engine, request(3, 30, "faulty"));
  const RequestId other = submit(*engine, request(4, 30));
  Answers answers;
  steps(*engine, 4, &answers);
  faults_.first = faults_.calls;
  steps(*engine, 40, &answers);
  expect_failed(answers.at({victim.value, 0}));
  EXPECT_EQ(answers.at({other.value, 0}).reason, FinishReason::length);
  EXPECT_EQ(answers.at({other.value, 0}).tokens, want);
  EXPECT_EQ(engine->stats().blocks_in_use, 0);
}

TEST_F(StepFailure, AFailedForkLeavesItsDocumentWhole) {
  auto engine = make();
  Request document = request(5, 45);
  document.sampling.max_tokens = 0;
  document.hold = true;
  const RequestId held = submit(*engine, document);
  Answers answers;
  steps(*engine, 2, &answers);
  Request question = request(6, 9, "faulty");
  question.fork_of = held;
  const std::vector<TokenId> want = run_one(*engine, question).tokens;
  faults_.first = faults_.calls + 2;
  expect_failed(run_one(*engine, question));
  EXPECT_EQ(run_one(*engine, question).tokens, want);
  engine->release(held);
  steps(*engine, 1, &answers);
  EXPECT_EQ(engine->stats().blocks_in_use, 0);
}

TEST_F(StepFailure, NAnswersOfOneRequestAllEnd) {
  auto engine = make();
  Request r = request(7, 40, "faulty", "faulty");
  r.sampling.n = 3;
  faults_.first = 0;
  const RequestId id = submit(*engine, r);
  Answers answers;
  steps(*engine, 3, &answers);
  for (int32_t i = 0; i < 3; ++i) expect_failed(answers.at({id.value, i}));
}

TEST_F(StepFailure, AStepThatIsBusyIsPlannedAgain) {
  const std::vector<TokenId> want = run_one(*make(), request(8, 100)).tokens;
  for (const int64_t busy : {1, 3, 4}) {
    for (const int64_t call : {1, 7, 11, 20}) {
      SCOPED_TRACE(std::to_string(busy) + " times from call " + std::to_string(call));
      auto engine = make();
      faults_ = {};
      faults_.first = call;
      faults_.count = busy;
      faults_.code = StatusCode::busy;
      Request r = request(8, 100, "faulty", "faulty");
      r.sampling.temperature = 1;  // the random number of a token does not depend on how often it was tried
      r.sampling.seed = 3;
      Request same = r;
      const RequestId id = submit(*engine, std::move(r));
      Answers answers;
      steps(*engine, 20, &answers);
      const Result1& got = answers.at({id.value, 0});
      EXPECT_EQ(got.reason, busy > 3 ? FinishReason::failed : FinishReason::length);
      faults_.first = -1;
      if (busy <= 3) {
        const Result1 once = run_one(*make(), std::move(same));
        EXPECT_EQ(got.tokens, once.tokens);
        EXPECT_EQ(got.stats.kv_bytes_read, once.stats.kv_bytes_read);
        EXPECT_EQ(got.stats.kv_bytes_dense, once.stats.kv_bytes_dense);
        EXPECT_EQ(got.stats.rows_by_method, once.stats.rows_by_method);
        EXPECT_EQ(got.stats.prefill_pairs_read, once.stats.prefill_pairs_read);
        EXPECT_EQ(got.stats.prefill_pairs_dense, once.stats.prefill_pairs_dense);
      }
      EXPECT_EQ(engine->stats().blocks_in_use, 0);
    }
  }
}

// A device whose memory runs out during a step.
class Full final : public Device {
 public:
  std::string_view kind() const override { return host_->kind(); }
  std::string description() const override { return host_->description(); }
  bool is_host() const override { return true; }
  int64_t free_bytes() const override { return host_->free_bytes(); }
  Result<Buffer> allocate(size_t bytes, std::string_view what) override {
    if (full) return Status::resource_exhausted(std::string(what) + ": the device is full");
    return host_->allocate(bytes, what);
  }
  Result<Buffer> allocate_pinned(size_t bytes, std::string_view what) override { return allocate(bytes, what); }
  std::unique_ptr<Stream> make_stream() override { return host_->make_stream(); }
  std::unique_ptr<Event> make_event() override { return host_->make_event(); }
  void copy(void* to, const void* from, size_t bytes, CopyKind kind, Stream& s) override { host_->copy(to, from, bytes, kind, s); }
  void fill(void* to, int value, size_t bytes, Stream& s) override { host_->fill(to, value, bytes, s); }
  Result<std::unique_ptr<Graph>> capture(Stream& s, const std::function<Status()>& work) override {
    return host_->capture(s, work);
  }
  Result<double> time(Stream& s, const std::function<Status()>& work) override { return host_->time(s, work); }
  DeviceCounters counters() const override { return host_->counters(); }

  bool full = false;

 private:
  std::unique_ptr<Device> host_ = make_cpu_device();
};

TEST_F(StepFailure, NoMemoryForTheTokensUnderAPenalty) {
  EngineParts parts;
  auto device = std::make_unique<Full>();
  Full& full = *device;
  parts.device = std::move(device);
  EngineOptions o = options();
  o.methods.clear();
  EngineImpl engine(o, std::move(parts));
  ASSERT_TRUE(engine.init().ok());
  const std::vector<TokenId> want = run_one(engine, request(9, 30)).tokens;
  full.full = true;
  Request r = request(10, 30);
  r.sampling.repetition_penalty = 1.3f;
  const Result1 failed = run_one(engine, r);
  EXPECT_EQ(failed.reason, FinishReason::failed);
  EXPECT_EQ(failed.error.code(), StatusCode::resource_exhausted);
  EXPECT_NE(failed.error.message().find("the device is full"), std::string::npos) << failed.error.message();
  EXPECT_EQ(run_one(engine, request(9, 30)).tokens, want);
  full.full = false;
  EXPECT_EQ(run_one(engine, r).reason, FinishReason::length);
}

}  // namespace
}  // namespace fovea::testing
