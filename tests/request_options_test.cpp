// What a request may ask of its tokens beyond sampling: log-probabilities, penalties, biases, a least length, a grammar. On the CPU
// and on the fake device, where such rows are read before the next step.
#include "engine_test_util.h"

#include <cmath>
#include <set>

namespace fovea::testing {
namespace {

struct Answer {
  std::vector<TokenId> tokens;
  std::string text;
  std::vector<TokenLogprobs> logprobs, prompt_logprobs;
  std::vector<std::vector<float>> logits;
  FinishReason reason = FinishReason::none;
  Status error;
};

// One request, or several beside each other, and all that came of them. `tap`: the logits of each token, which makes steps wait.
std::vector<Answer> answer_all(Engine& engine, const std::vector<Request>& requests, bool tap = false) {
  std::vector<Answer> answers;
  std::map<std::pair<uint64_t, int32_t>, size_t> place;
  for (const Request& r : requests) {
    auto id = engine.submit(r);
    EXPECT_TRUE(id.ok()) << id.status().message();
    for (int32_t i = 0; id.ok() && i < r.sampling.n; ++i) {
      place[{id->value, i}] = answers.size();
      answers.emplace_back();
    }
  }
  if (tap) {
    engine.set_logits_tap([&](RequestId id, int32_t index, std::span<const float> l) {
      answers[place.at({id.value, index})].logits.emplace_back(l.begin(), l.end());
    });
  }
  std::vector<Output> outputs;
  for (bool more = true; more;) {
    outputs.clear();
    more = *engine.step(&outputs);
    for (Output& o : outputs) {
      Answer& a = answers[place.at({o.request.value, o.index})];
      EXPECT_EQ(a.reason, FinishReason::none);
      a.tokens.insert(a.tokens.end(), o.tokens.begin(), o.tokens.end());
      a.text += o.text;
      EXPECT_TRUE(o.logprobs.empty() || o.logprobs.size() == o.tokens.size());
      a.logprobs.insert(a.logprobs.end(), o.logprobs.begin(), o.logprobs.end());
      if (!o.prompt_logprobs.empty()) {
        EXPECT_TRUE(a.prompt_logprobs.empty()) << "told twice";
        a.prompt_logprobs = o.prompt_logprobs;
      }
      if (o.finished) a.reason = o.reason, a.error = o.error;
    }
  }
  engine.set_logits_tap(nullptr);
  return answers;
}

Answer answer(Engine& engine, const Request& request, bool tap = true) { return answer_all(engine, {request}, tap)[0]; }

double logprob(const std::vector<float>& logits, TokenId token) {
  double sum = 0;
  for (float l : logits) sum += std::exp(double(l) - double(logits[0]));
  return double(logits[token]) - double(logits[0]) - std::log(sum);
}

TokenId argmax(const std::vector<float>& logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

class RequestOptions : public ::testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Engine> engine(const std::string& dir = tiny_checkpoint("qwen3_llama3_8h2kv_d64"), int32_t rows = 24) {
    EngineOptions o = exact_options(dir);
    o.max_model_len = 512;
    o.max_num_batched_tokens = rows;
    o.max_num_seqs = 6;
    o.device = GetParam();
    return make_engine(std::move(o));
  }
  static Request request(uint64_t seed = 1, int64_t prompt = 40, int32_t tokens = 12) {
    return greedy(random_prompt(seed, prompt, 64), tokens);
  }
};

std::vector<std::string> devices() {
  if (test_device() == "cuda") return {"cuda"};
  return {"cpu", "fake"};
}

INSTANTIATE_TEST_SUITE_P(On, RequestOptions, ::testing::ValuesIn(devices()), [](const auto& p) { return p.param; });

TEST_P(RequestOptions, LogprobsAreThoseOfTheModelsLogits) {
  auto e = engine();
  Request r = request();
  const Answer plain = answer(*e, r, false);
  r.sampling.logprobs = 5;
  EXPECT_EQ(answer(*e, r, false).tokens, plain.tokens);
  for (const float temperature : {0.0f, 1.5f}) {
    r.sampling.temperature = temperature;
    r.sampling.seed = 3;
    r.sampling.logit_bias = {{11, 2.0f}};  // changes what is chosen, and not what is told
    const Answer a = answer(*e, r);
    ASSERT_EQ(a.logprobs.size(), 12u);
    for (size_t i = 0; i < 12; ++i) {
      const TokenLogprobs& of = a.logprobs[i];
      EXPECT_EQ(of.chosen.token, a.tokens[i]);
      EXPECT_NEAR(of.chosen.logprob, logprob(a.logits[i], a.tokens[i]), 1e-5);
      ASSERT_EQ(of.top.size(), 5u);
      EXPECT_EQ(of.top[0].token, argmax(a.logits[i]));
      for (const TokenLogprob& t : of.top) EXPECT_NEAR(t.logprob, logprob(a.logits[i], t.token), 1e-5);
      for (size_t j = 1; j < 5; ++j) EXPECT_GE(of.top[j - 1].logprob, of.top[j].logprob);
    }
  }
}

// By prefill in chunks, what the same tokens have when they are given one by one.
TEST_P(RequestOptions, PromptLogprobsAreThoseOfItsTokensOneByOne) {
  auto e = engine();
  const Request prompt = request(2, 61);
  Request given = greedy({prompt.prompt[0]}, 60);
  given.given_answer.assign(prompt.prompt.begin() + 1, prompt.prompt.end());
  const Answer one_by_one = answer(*e, given);
  for (const int32_t tokens : {0, 3}) {
    Request r = prompt;
    r.sampling.max_tokens = tokens;
    r.sampling.prompt_logprobs = 2;
    r.sampling.n = tokens == 0 ? 1 : 2;
    for (int again = 0; again < 2; ++again) {
      const std::vector<Answer> answers = answer_all(*e, {r, request(3, 30), r});
      EXPECT_TRUE(answers[1 + (tokens > 0)].prompt_logprobs.empty());
      const std::vector<TokenLogprobs>& got = answers[0].prompt_logprobs;
      ASSERT_EQ(got.size(), r.prompt.size());
      EXPECT_EQ(got[0].chosen.token, r.prompt[0]);
      EXPECT_EQ(got[0].chosen.logprob, 0);
      EXPECT_TRUE(got[0].top.empty());
      for (size_t i = 1; i < got.size(); ++i) {
        EXPECT_EQ(got[i].chosen.token, r.prompt[i]);
        EXPECT_NEAR(got[i].chosen.logprob, logprob(one_by_one.logits[i - 1], r.prompt[i]), 1e-4) << i;
        ASSERT_EQ(got[i].top.size(), 2u);
        EXPECT_EQ(got[i].top[0].token, argmax(one_by_one.logits[i - 1])) << i;
        const auto& other = answers.back().prompt_logprobs.empty() ? answers[answers.size() - 2] : answers.back();
        EXPECT_NEAR(other.prompt_logprobs[i].chosen.logprob, got[i].chosen.logprob, 1e-5);
      }
      EXPECT_EQ(answers[0].reason, FinishReason::length);
      EXPECT_EQ(answers[0].tokens.size(), static_cast<size_t>(tokens));
    }
  }
}

// A latent model's prompts too, and every chunk size.
TEST_P(RequestOptions, PromptLogprobsDoNotDependOnChunks) {
  for (const std::string& dir : {tiny_checkpoint("qwen3_llama3_8h2kv_d64"), tiny_dsa()}) {
    std::vector<float> first;
    for (const int32_t rows : {512, 7, 16}) {
      EngineOptions o = exact_options(dir);
      o.max_model_len = 512;
      o.max_num_batched_tokens = rows;
      o.max_num_seqs = 2;
      o.device = dir == tiny_dsa() && GetParam() == "fake" ? "cpu" : GetParam();
      auto e = make_engine(o);
      ASSERT_TRUE(e);
      Request r = request(5, 45, 1);
      r.sampling.prompt_logprobs = 0;
      std::vector<float> got;
      for (const TokenLogprobs& t : answer(*e, r, false).prompt_logprobs) got.push_back(t.chosen.logprob);
      ASSERT_EQ(got.size(), 45u);
      if (first.empty()) first = got;
      EXPECT_LE(max_difference(first, got), 1e-4f) << dir << " " << rows;
    }
  }
}

TEST_P(RequestOptions, PenaltiesAreThoseOfTheOutputSoFar) {
  auto e = engine();
  Request r = request(4, 40, 40);
  r.sampling.frequency_penalty = 0.75f;
  r.sampling.presence_penalty = 0.5f;
  const Answer a = answer(*e, r);
  std::map<TokenId, int> counts;
  for (size_t i = 0; i < a.tokens.size(); ++i) {
    std::vector<float> logits = a.logits[i];
    for (const auto& [token, count] : counts) logits[token] = logits[token] - 0.75f * static_cast<float>(count) - 0.5f;
    ASSERT_EQ(a.tokens[i], argmax(logits)) << i;
    ++counts[a.tokens[i]];
  }
  EXPECT_EQ(answer(*e, r, false).tokens, a.tokens);
  EXPECT_NE(answer(*e, request(4, 40, 40), false).tokens, a.tokens);
}

// A bias of nothing sends a request through the host: it draws what the device draws.
TEST_P(RequestOptions, TheHostDrawsWhatTheDeviceDraws) {
  auto e = engine();
  Request r = request(6, 20, 60);
  r.sampling.temperature = 1.0f;
  r.sampling.top_p = 0.9f;
  r.sampling.repetition_penalty = 1.3f;
  r.sampling.seed = 8;
  const Answer by_device = answer(*e, r, false);
  r.sampling.logit_bias = {{0, 0.0f}};
  EXPECT_EQ(answer(*e, r, false).tokens, by_device.tokens);
  r.sampling.logit_bias = {{9, 100.0f}};
  EXPECT_EQ(answer(*e, r, false).tokens, std::vector<TokenId>(60, 9));
}

TEST_P(RequestOptions, NothingEndsBeforeMinTokens) {
  auto e = engine();
  Request r = request(7, 20, 30);
  const Answer free = answer(*e, r, false);
  r.sampling.stop_token_ids = {free.tokens[0]};
  Answer a = answer(*e, r, false);
  EXPECT_EQ(a.tokens.size(), 1u);
  EXPECT_EQ(a.reason, FinishReason::stop);
  r.sampling.min_tokens = 5;
  a = answer(*e, r, false);
  ASSERT_GE(a.tokens.size(), 6u);
  EXPECT_EQ(std::find(a.tokens.begin(), a.tokens.begin() + 5, free.tokens[0]), a.tokens.begin() + 5);
}

TEST_P(RequestOptions, NoStopStringBeforeMinTokens) {
  auto e = engine(tiny_gqa());
  Request r = greedy(*e->tokenize("The quick brown fox jumps over the lazy dog. The quick brown fox"), 20);
  const Answer free = answer(*e, r, false);
  ASSERT_GT(free.text.size(), 10u);
  r.sampling.stop = {free.text.substr(0, 3), free.text.substr(free.text.size() - 4)};
  const Answer stopped = answer(*e, r, false);
  EXPECT_EQ(stopped.reason, FinishReason::stop);
  r.sampling.min_tokens = 10;
  const Answer a = answer(*e, r, false);
  EXPECT_GE(a.tokens.size(), 10u);
  EXPECT_EQ(a.text, free.text.substr(0, a.text.size()));
  EXPECT_GT(a.text.size(), stopped.text.size());
}

// Tokens in steps of two, `length` of them; and it may break.
class Steps final : public TokenConstraint {
 public:
  Steps(TokenId at, int length, int breaks_at) : at_(at), left_(length), breaks_at_(breaks_at) {}
  Status allow(std::span<uint32_t> mask) override {
    if (left_ == breaks_at_) return {};
    for (TokenId t : {at_, at_ + 2}) mask[static_cast<size_t>(t) / 32] |= 1u << (t % 32);
    return {};
  }
  Status accept(TokenId token) override {
    at_ = token;
    --left_;
    return {};
  }
  bool done() const override { return left_ == 0; }

 private:
  TokenId at_;
  int left_, breaks_at_;
};

class StepsGrammar final : public TokenGrammar {
 public:
  explicit StepsGrammar(int length, int breaks_at = -1) : length_(length), breaks_at_(breaks_at) {}
  std::unique_ptr<TokenConstraint> begin() const override { return std::make_unique<Steps>(4, length_, breaks_at_); }

 private:
  const int length_, breaks_at_;
};

TEST_P(RequestOptions, AGrammarSaysWhatComesAndWhenItEnds) {
  auto e = engine();
  Request r = request(8, 30, 20);
  r.sampling.temperature = 1.0f;
  r.sampling.n = 3;
  r.grammar = std::make_shared<StepsGrammar>(9);
  Request breaks = r;
  breaks.sampling.n = 1;
  breaks.grammar = std::make_shared<StepsGrammar>(9, 5);
  const Request plain = request(9, 30, 30);
  const Answer alone = answer(*e, plain, false);
  const std::vector<Answer> answers = answer_all(*e, {r, breaks, plain});
  std::set<std::vector<TokenId>> different;
  for (int i = 0; i < 3; ++i) {
    const Answer& a = answers[i];
    EXPECT_EQ(a.reason, FinishReason::stop);
    ASSERT_EQ(a.tokens.size(), 9u);
    for (size_t t = 0, at = 4; t < 9; at = a.tokens[t++]) EXPECT_TRUE(size_t(a.tokens[t]) == at || size_t(a.tokens[t]) == at + 2);
    different.insert(a.tokens);
  }
  EXPECT_GT(different.size(), 1u);
  EXPECT_EQ(answers[3].reason, FinishReason::failed);
  EXPECT_EQ(answers[3].tokens.size(), 4u);
  EXPECT_EQ(answers[3].error.message().rfind("grammar: ", 0), 0u) << answers[3].error.message();
  EXPECT_EQ(answers[4].tokens, alone.tokens);
  EXPECT_EQ(e->stats().blocks_in_use, 0);
  EXPECT_EQ(e->stats().finished[static_cast<size_t>(FinishReason::failed)], 1);
}

TEST_P(RequestOptions, AnswersInJsonAsASchemaSays) {
  auto e = engine(tiny_gqa(), 64);
  const auto grammar = e->json_grammar(R"({"type": "object", "properties": {"color": {"enum": ["red", "green"]},
      "size": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["color", "size"]})");
  ASSERT_TRUE(grammar.ok()) << grammar.status().message();
  Request r;
  r.prompt = *e->tokenize("A thing, as JSON: ");
  r.sampling.max_tokens = 300;
  r.sampling.temperature = 1.0f;
  r.sampling.seed = 4;
  r.sampling.n = 4;
  r.grammar = *grammar;
  for (const Answer& a : answer_all(*e, {r})) {
    EXPECT_EQ(a.reason, FinishReason::stop) << a.text;
    const auto json = nlohmann::json::parse(a.text, nullptr, false);
    ASSERT_TRUE(json.is_object()) << a.text;
    EXPECT_TRUE(json.at("color") == "red" || json.at("color") == "green");
    EXPECT_TRUE(json.at("size") >= 0 && json.at("size") <= 99);
  }
}

// What a request gets alone it gets among others, preempted and recomputed too.
TEST_P(RequestOptions, OthersChangeNothing) {
  EngineOptions o = exact_options(tiny_checkpoint("qwen3_llama3_8h2kv_d64"));
  o.max_model_len = 512;
  o.max_num_batched_tokens = 32;
  o.max_num_seqs = 6;
  o.device = GetParam();
  o.swap_space_bytes = 0;
  auto roomy = make_engine(o);
  ASSERT_TRUE(roomy);
  std::vector<Request> requests;
  for (uint64_t i = 0; i < 6; ++i) {
    Request r = request(20 + i, 50, 60);
    if (i % 2) r.sampling.temperature = 1.0f, r.sampling.seed = i;
    if (i != 0) r.sampling.logprobs = 1;
    if (i == 2) r.sampling.frequency_penalty = 1.0f;
    if (i == 3) r.sampling.min_tokens = 20, r.sampling.stop_token_ids = {5, 6, 7, 8, 9, 10};
    if (i == 4) r.sampling.prompt_logprobs = 1;
    if (i == 5) r.sampling.prompt_logprobs = 0, r.grammar = std::make_shared<StepsGrammar>(25);
    requests.push_back(r);
  }
  std::vector<Answer> alone;
  for (const Request& r : requests) alone.push_back(answer(*roomy, r, false));
  o.kv_cache_memory_bytes = roomy->stats().block_bytes * 24;  // together they want 42 blocks
  auto starved = make_engine(o);
  ASSERT_TRUE(starved);
  const std::vector<Answer> together = answer_all(*starved, requests);
  EXPECT_GT(starved->stats().preemptions, 0);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(together[i].tokens, alone[i].tokens) << i;
    EXPECT_EQ(together[i].reason, alone[i].reason) << i;
    ASSERT_EQ(together[i].logprobs.size(), alone[i].logprobs.size()) << i;
    for (size_t t = 0; t < alone[i].logprobs.size(); ++t)
      EXPECT_NEAR(together[i].logprobs[t].chosen.logprob, alone[i].logprobs[t].chosen.logprob, 1e-4);
    ASSERT_EQ(together[i].prompt_logprobs.size(), alone[i].prompt_logprobs.size()) << i;
    for (size_t t = 0; t < alone[i].prompt_logprobs.size(); ++t)
      EXPECT_NEAR(together[i].prompt_logprobs[t].chosen.logprob, alone[i].prompt_logprobs[t].chosen.logprob, 1e-4);
  }
}

TEST_P(RequestOptions, WhatDoesNotGoTogetherIsRefusedByName) {
  auto e = engine();
  const auto refused = [&](const char* field, auto&& set) {
    Request r = request();
    set(r);
    const auto id = e->submit(std::move(r));
    ASSERT_FALSE(id.ok()) << field;
    EXPECT_EQ(id.status().code(), StatusCode::invalid_argument);
    EXPECT_EQ(id.status().message().rfind(std::string(field) + ": ", 0), 0u) << id.status().message();
  };
  refused("logit_bias", [](Request& r) { r.sampling.logit_bias = {{64, 1.0f}}; });
  refused("logit_bias", [](Request& r) { r.sampling.logit_bias = {{-1, 1.0f}}; });
  refused("grammar", [](Request& r) { r.grammar = std::make_shared<StepsGrammar>(3), r.sampling.min_tokens = 1; });
  refused("grammar", [](Request& r) { r.grammar = std::make_shared<StepsGrammar>(3), r.given_answer = {1}; });
  refused("prompt_logprobs", [](Request& r) { r.sampling.prompt_logprobs = 1, r.fork_of = RequestId{1}; });
}

}  // namespace
}  // namespace fovea::testing
