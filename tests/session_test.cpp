// Sessions and forks over a real engine.
#include "engine_test_util.h"

#include <fovea/session.h>

namespace fovea::testing {
namespace {

// The first token of an answer is sampled from the last row computed: a fork without a row of its own has none.
TEST(Fork, NeedsATokenOfItsOwnAndOneIsEnough) {
  const auto engine = make_engine(exact_options(tiny_checkpoint("qwen3_llama3_8h2kv_d64")));
  const std::vector<TokenId> prompt = random_prompt(3, 40, engine->model().vocab_size);
  const std::vector<TokenId> whole = run_one(*engine, greedy(prompt, 4)).tokens;

  Request held = greedy({prompt.begin(), prompt.end() - 1}, 0);
  held.hold = true;
  const auto parent = engine->submit(held);
  ASSERT_TRUE(parent.ok());
  run_all(*engine);
  Request fork = greedy({}, 4);
  fork.fork_of = *parent;
  const auto refused = engine->submit(fork);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::invalid_argument);
  EXPECT_NE(refused.status().message().find("prompt"), std::string::npos);
  EXPECT_NE(refused.status().message().find("fork"), std::string::npos);
  fork.prompt = {prompt.back()};
  EXPECT_EQ(run_one(*engine, fork).tokens, whole);
}

// The session's prompt is the text's own: the same tokens as the message in one piece.
TEST(DocumentSession, AsksAsOnePromptWouldAndGivesItsBlocksBack) {
  EngineOptions o = exact_options(tiny_gqa());
  o.max_model_len = 1024;
  const auto engine = make_engine(o);
  const std::string document = "Station log.\nThe pin of Olga is 48213.\nDay 1. Nobody came.",
                    question = "What is the pin of Olga?";
  SamplingParams sampling;
  sampling.max_tokens = 12;
  auto session = DocumentSession::open(*engine, document, nullptr).value();
  const auto answers = session->ask({{.text = question}}, sampling, nullptr);
  ASSERT_TRUE(answers.ok()) << answers.status().message();
  Request whole;
  whole.prompt = chat_prompt(*engine, document + "\n\n" + question).value();
  whole.sampling = sampling;
  EXPECT_EQ((*answers)[0].first_position, static_cast<int64_t>(whole.prompt.size()) - 1);
  EXPECT_EQ((*answers)[0].tokens, run_one(*engine, whole).tokens);
  EXPECT_GT(engine->stats().blocks_in_use, 0);
  session.reset();
  run_all(*engine);
  EXPECT_EQ(engine->stats().blocks_in_use, 0);
}

std::unique_ptr<Engine> make_decoder(const std::string& method) {
  EngineOptions o = exact_options(tiny_checkpoint("qwen3_llama3_8h2kv_d64"));
  o.decode_method = method;
  o.sparse_min_context = 64;
  return make_engine(o);
}

// Its tail lies in the cache too: nothing is left to compute, and a question's rows see the same bytes.
TEST(Fork, ADocumentHeldAgainIsFoundWhole) {
  for (const char* decode : {"dense", "gsa_on_device"}) {
    const auto engine = make_decoder(decode);
    Request document = greedy(random_prompt(5, 331, engine->model().vocab_size), 0);
    document.hold = true;
    std::vector<Result1> answers;
    for (int64_t found : {0, 331, 331}) {
      const auto held = engine->submit(document);
      ASSERT_TRUE(held.ok());
      const Answers read = run_all(*engine);
      EXPECT_EQ(read.at({held->value, 0}).stats.cached_tokens, found);
      EXPECT_EQ(read.at({held->value, 0}).reason, FinishReason::length);
      Request question = greedy(random_prompt(6, 9, engine->model().vocab_size), 12);
      question.fork_of = *held;
      answers.push_back(run_one(*engine, question));
      EXPECT_EQ(answers.back().tokens, answers[0].tokens) << decode;
      EXPECT_EQ(answers.back().logits, answers[0].logits) << decode;
      EXPECT_EQ(answers.back().stats.cached_tokens, 331);
      engine->release(*held);
    }
    run_all(*engine);
    EXPECT_EQ(engine->stats().blocks_in_use, 0);
  }
}

// The logits of a given answer are those of a request that had sampled its tokens.
TEST(GivenAnswer, StandsForSampledTokens) {
  for (const char* decode : {"dense", "gsa_on_device"}) {
    const auto engine = make_decoder(decode);
    Request r = greedy(random_prompt(5, 331, engine->model().vocab_size), 8);
    const Result1 sampled = run_one(*engine, r);
    ASSERT_EQ(sampled.tokens.size(), 8u);
    r.given_answer = sampled.tokens;
    const Result1 same = run_one(*engine, r);
    EXPECT_EQ(same.tokens, sampled.tokens);
    EXPECT_EQ(same.logits, sampled.logits);

    r.given_answer.resize(5);
    r.given_answer[2] ^= 1;
    const Result1 other = run_one(*engine, r);
    EXPECT_EQ(other.tokens, r.given_answer);
    EXPECT_EQ(other.reason, FinishReason::length) << "it ends where what was given ends";
    ASSERT_EQ(other.logits.size(), 5u);
    for (size_t i = 0; i < 5; ++i) EXPECT_EQ(other.logits[i] == sampled.logits[i], i <= 2) << i;
  }
}

TEST(GivenAnswer, EndsWhereAnyAnswerWouldAndIsRefusedByName) {
  const auto engine = make_engine(exact_options(tiny_checkpoint("qwen3_llama3_8h2kv_d64")));
  Request r = greedy(random_prompt(5, 30, engine->model().vocab_size), 8);
  r.given_answer = {4, 5, 6, 7};
  r.sampling.stop_token_ids = {5};
  const Result1 stopped = run_one(*engine, r);
  EXPECT_EQ(stopped.tokens, (std::vector<TokenId>{4, 5}));
  EXPECT_EQ(stopped.reason, FinishReason::stop);
  const auto refused = [&](const Request& bad) {
    const auto id = engine->submit(bad);
    return id.ok() ? std::string() : id.status().message();
  };
  r.sampling.n = 2;
  EXPECT_NE(refused(r).find("given_answer"), std::string::npos);
  r.sampling.n = 1;
  r.given_answer = {engine->model().vocab_size};
  EXPECT_NE(refused(r).find("given_answer"), std::string::npos);
}

}  // namespace
}  // namespace fovea::testing
