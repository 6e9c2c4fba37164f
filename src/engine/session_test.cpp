// A document session over an engine of the test's own: what is held, what is asked, and what is left behind when a step fails.
#include <fovea/session.h>

#include <gtest/gtest.h>

#include <set>

namespace fovea {
namespace {

// Tokens are characters. A request is answered by one step with its prompt's last token; step number `fail_at` fails.
class FakeEngine : public Engine {
 public:
  const ModelInfo& model() const override { return info_; }
  const EngineOptions& options() const override { return options_; }
  std::string backend() const override { return "fake"; }
  Result<std::vector<TokenId>> tokenize(std::string_view text) const override {
    return std::vector<TokenId>(text.begin(), text.end());
  }
  std::string detokenize(std::span<const TokenId> tokens) const override { return {tokens.begin(), tokens.end()}; }
  std::string token_bytes(TokenId token) const override { return detokenize({&token, 1}); }
  Result<std::shared_ptr<const TokenGrammar>> json_grammar(std::string_view) const override { return Status::unsupported("fake"); }
  Result<std::string> apply_chat_template(const ChatInput& input) const override { return "<" + input.messages[0].content + ">"; }
  Result<RequestId> submit(Request r) override {
    if (submitted.size() == refuse_at) return Status::busy("full");
    submitted.push_back(r);
    const RequestId id{submitted.size()};
    live.insert(id.value);
    return id;
  }
  void abort(RequestId id) override { live.erase(id.value); }
  void release(RequestId id) override { released.insert(id.value); }
  Result<bool> step(std::vector<Output>* outputs) override {
    if (++steps == fail_at) return Status::internal("the device is gone");
    for (uint64_t id : live) {
      const Request& r = submitted[id - 1];
      if (r.trace && trace_) {
        for (int64_t p = 0; p < 40; ++p) trace_({.request = RequestId{id}, .position = p, .answer = p >= 9});
      }
      Output out;
      out.request = RequestId{id};
      out.finished = true;
      out.reason = FinishReason::stop;
      if (r.sampling.max_tokens > 0) out.tokens = {r.prompt.back()};
      out.text = std::string(out.tokens.begin(), out.tokens.end());
      outputs->push_back(out);
    }
    live.clear();
    return true;
  }
  bool wait_for_work(double) override { return !live.empty(); }
  void wake() override {}
  EngineStats stats() const override { return {}; }
  int64_t computed_tokens(RequestId) const override { return 0; }
  KvMemory kv_memory() const override { return {}; }
  void flush_store() override {}
  Result<SparseRequestState> request_state(RequestId, int32_t) const override { return Status::not_found("none"); }
  void set_trace(std::function<void(const SelectionTrace&)> callback) override { trace_ = std::move(callback); }
  void set_logits_tap(std::function<void(RequestId, int32_t, std::span<const float>)>) override {}
  bool traced() const { return trace_ != nullptr; }

  std::vector<Request> submitted;
  std::set<uint64_t> live, released;
  size_t refuse_at = SIZE_MAX;
  int steps = 0, fail_at = -1;

 private:
  ModelInfo info_ = [] {
    ModelInfo i;
    i.has_chat_template = true;
    return i;
  }();
  EngineOptions options_;
  std::function<void(const SelectionTrace&)> trace_;
};

std::string text_of(const std::vector<TokenId>& tokens) { return {tokens.begin(), tokens.end()}; }

TEST(DocumentSession, HoldsWhatEveryPromptBeginsWithAndForksIt) {
  FakeEngine engine;
  auto session = DocumentSession::open(engine, "doc", nullptr, "xattention");
  ASSERT_TRUE(session.ok()) << session.status().message();
  EXPECT_EQ((*session)->document_tokens(), 4) << "<doc";
  const Request held = engine.submitted[0];
  EXPECT_TRUE(held.hold);
  EXPECT_EQ(held.sampling.max_tokens, 0);
  EXPECT_EQ(held.prefill_method, "xattention");

  const auto answers =
      (*session)->ask({{.text = "why"}, {.text = "how", .decode_method = "gsa", .budget_tokens = 64}}, {}, nullptr);
  ASSERT_TRUE(answers.ok());
  ASSERT_EQ(answers->size(), 2u);
  const Request second = engine.submitted[2];
  EXPECT_EQ(second.fork_of, RequestId{1});
  EXPECT_EQ(text_of(second.prompt), "\n\nhow>");
  EXPECT_EQ(second.decode_method, "gsa");
  EXPECT_EQ(second.budget_tokens, 64);
  EXPECT_EQ(second.prefill_method, "xattention");
  EXPECT_EQ((*answers)[1].text, ">");
  EXPECT_EQ((*answers)[1].first_position, 4 + 6 - 1);

  const int steps = engine.steps;
  session->reset();
  EXPECT_TRUE(engine.released.contains(1));
  EXPECT_EQ(engine.steps, steps) << "a step's outputs would be lost";
}

TEST(DocumentSession, RowsOfQuestionAndAnswerAreTracedAndTheCallbackGoes) {
  FakeEngine engine;
  auto session = DocumentSession::open(engine, "doc", nullptr).value();
  std::vector<int64_t> positions;
  const auto trace = [&](size_t question, const SelectionTrace& t) {
    EXPECT_EQ(question, 1u);
    EXPECT_EQ(t.answer, t.position >= 9) << "the question's earlier rows made no token";
    positions.push_back(t.position);
  };
  ASSERT_TRUE(session->ask({{.text = "why"}, {.text = "how", .trace = true}}, {}, nullptr, trace).ok());
  ASSERT_EQ(positions.size(), 40u);
  EXPECT_EQ(positions.front(), 0);
  EXPECT_FALSE(engine.traced());
}

TEST(DocumentSession, AStepThatFailsLeavesNothingQueued) {
  FakeEngine engine;
  auto session = DocumentSession::open(engine, "doc", nullptr).value();
  engine.fail_at = engine.steps + 1;
  const auto answers = session->ask({{.text = "why"}, {.text = "how"}}, {}, nullptr);
  ASSERT_FALSE(answers.ok());
  EXPECT_EQ(answers.status().message(), "the device is gone");
  EXPECT_TRUE(engine.live.empty());
  const int steps = engine.steps;
  session.reset();
  EXPECT_TRUE(engine.released.contains(1));
  EXPECT_EQ(engine.steps, steps);
}

TEST(DocumentSession, ARefusedQuestionTakesTheOthersBack) {
  FakeEngine engine;
  auto session = DocumentSession::open(engine, "doc", nullptr).value();
  engine.refuse_at = 2;
  EXPECT_EQ(session->ask({{.text = "why"}, {.text = "how"}}, {}, nullptr).status().code(), StatusCode::busy);
  EXPECT_TRUE(engine.live.empty());
}

TEST(DocumentSession, AReadingThatFailsIsTakenBack) {
  FakeEngine engine;
  engine.fail_at = 1;
  EXPECT_FALSE(DocumentSession::open(engine, "doc", nullptr).ok());
  EXPECT_TRUE(engine.live.empty());
  EXPECT_TRUE(engine.released.contains(1));
  EXPECT_EQ(engine.steps, 1);
}

TEST(DocumentSession, WithoutASinkTheEnginesOwnTraceStays) {
  FakeEngine engine;
  int rows = 0;
  engine.set_trace([&](const SelectionTrace&) { ++rows; });
  const auto session = DocumentSession::open(engine, "doc", nullptr).value();
  ASSERT_TRUE(session->ask({{.text = "Q", .trace = true}}, {}, nullptr).ok());
  EXPECT_EQ(rows, 40);
  const auto sink = [](size_t, const SelectionTrace&) {};
  ASSERT_TRUE(session->ask({{.text = "Q", .trace = true}}, {}, nullptr, sink).ok());
  EXPECT_EQ(rows, 40);
  EXPECT_FALSE(engine.traced());
}

TEST(DocumentSession, TextThatIsNoUtf8IsRefusedWithItsOffset) {
  FakeEngine engine;
  const auto session = DocumentSession::open(engine, "ab\xff", nullptr);
  ASSERT_FALSE(session.ok());
  EXPECT_NE(session.status().message().find("offset 2"), std::string::npos);
  EXPECT_TRUE(engine.submitted.empty());
}

}  // namespace
}  // namespace fovea
