#include "engine/token_choice.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace fovea {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(Logprobs, AreTheLogOfTheSoftmax) {
  // softmax of ln(1, 2, 4, 1): 1/8, 1/4, 1/2, 1/8
  const std::vector<float> logits = {0, std::log(2.0f), std::log(4.0f), 0};
  const TokenLogprobs of = logprobs_of(logits, 1, 3);
  EXPECT_EQ(of.chosen.token, 1);
  EXPECT_NEAR(of.chosen.logprob, std::log(0.25), 1e-6);
  EXPECT_EQ(of.chosen.rank, 2);
  ASSERT_EQ(of.top.size(), 3u);
  const int32_t tokens[] = {2, 1, 0}, ranks[] = {1, 2, 3};
  const double shares[] = {0.5, 0.25, 0.125};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(of.top[i].token, tokens[i]);
    EXPECT_EQ(of.top[i].rank, ranks[i]);
    EXPECT_NEAR(of.top[i].logprob, std::log(shares[i]), 1e-6);
  }
}

TEST(Logprobs, EqualTokensShareARankAndMoreThanThereAreIsAll) {
  const TokenLogprobs of = logprobs_of(std::vector<float>{1, 3, 3, -kInf}, 2, 20);
  EXPECT_EQ(of.chosen.rank, 1);
  ASSERT_EQ(of.top.size(), 4u);
  EXPECT_EQ(of.top[0].token, 1);
  EXPECT_EQ(of.top[1].token, 2);
  EXPECT_EQ(of.top[1].rank, 1);
  EXPECT_EQ(of.top[2].rank, 3);
  EXPECT_EQ(of.top[3].logprob, -kInf);
  EXPECT_TRUE(logprobs_of(std::vector<float>{1, 3}, 0, 0).top.empty());
}

TEST(Logprobs, OfManyTokensSumToOneAndAreInOrder) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 5);
  std::vector<float> logits(5000);
  for (float& l : logits) l = normal(random);
  std::vector<int32_t> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  const TokenLogprobs of = logprobs_of(logits, order[777], 20);
  EXPECT_EQ(of.chosen.rank, 778);
  for (size_t i = 0; i < 20; ++i) EXPECT_EQ(of.top[i].token, order[i]);
  double sum = 0;
  for (int32_t t : order) sum += std::exp(logprobs_of(logits, t, 0).chosen.logprob);
  EXPECT_NEAR(sum, 1, 1e-4);
}

// Allows the tokens of a list, whatever comes.
class Only final : public TokenConstraint {
 public:
  explicit Only(std::vector<TokenId> tokens) : tokens_(std::move(tokens)) {}
  Status allow(std::span<uint32_t> mask) override {
    for (TokenId t : tokens_) mask[static_cast<size_t>(t) / 32] |= 1u << (t % 32);
    return {};
  }
  Status accept(TokenId token) override {
    accepted.push_back(token);
    return token == 39 ? Status::invalid_argument("not that one") : Status();
  }
  bool done() const override { return false; }

  std::vector<TokenId> accepted;

 private:
  const std::vector<TokenId> tokens_;
};

class Choosing : public ::testing::Test {
 protected:
  static constexpr int32_t kVocab = 40;

  Choosing() : logits_(kVocab, 0.0f) {}
  TokenId choose(const SamplingParams& p, TokenConstraint* constraint = nullptr, float uniform = 0) {
    const Result<TokenId> token = chooser_.choose(
        logits_, {.params = p, .constraint = constraint, .tokens = tokens_, .prompt_tokens = prompt_tokens_, .uniform = uniform});
    EXPECT_TRUE(token.ok()) << token.status().message();
    return token.ok() ? *token : -1;
  }

  TokenChooser chooser_{kVocab, {7}};
  std::vector<float> logits_;
  std::vector<TokenId> tokens_ = {3, 3, 3, 4, 4, 5};  // prompt 3, output 3 more
  int64_t prompt_tokens_ = 3;
};

// logit - count * frequency - (count > 0) * presence, of the output alone.
TEST_F(Choosing, PenaltiesCountTheOutputAlone) {
  logits_[3] = 1.0f;                                     // in the prompt three times
  logits_[4] = 2.0f;                                     // in the output twice
  logits_[5] = 1.9f;                                     // once
  EXPECT_EQ(choose({.frequency_penalty = 0.0625f}), 4);  // 1.875 > 1.8375
  EXPECT_EQ(choose({.frequency_penalty = 0.125f}), 5);   // 1.75 < 1.775
  EXPECT_EQ(choose({.presence_penalty = 0.5f}), 4);      // both lose as much
  EXPECT_EQ(choose({.presence_penalty = 1.5f}), 3);
  EXPECT_EQ(choose({.frequency_penalty = 0.5f, .presence_penalty = 0.25f}), 5);   // 0.75, 1.15, of 3 1.0
  EXPECT_EQ(choose({.frequency_penalty = 0.5f, .presence_penalty = 0.375f}), 5);  // 0.625, 1.025
  EXPECT_EQ(choose({.frequency_penalty = 0.5f, .presence_penalty = 0.5f}), 3);    // 0.5, 0.9
  EXPECT_EQ(choose({.frequency_penalty = -2.0f}), 4);
  EXPECT_EQ(choose({}), 4);  // nothing is left over from one call to the next
}

// transformers' rule, over prompt and output, before the others.
TEST_F(Choosing, TheRepetitionPenaltyComesFirstAndOnce) {
  logits_[3] = 3.0f;
  logits_[4] = -1.0f;
  logits_[6] = 1.25f;
  EXPECT_EQ(choose({.repetition_penalty = 2.0f, .logit_bias = {{9, 0}}}), 3);  // 1.5: divided once
  logits_[4] = 3.5f;                                                           // 1.75, then - 0.5
  EXPECT_EQ(choose({.repetition_penalty = 2.0f, .presence_penalty = 0.5f}), 3);
  EXPECT_EQ(choose({.repetition_penalty = 2.0f, .presence_penalty = 0.125f}), 4);
}

TEST_F(Choosing, BiasIsAddedBeforePenalties) {
  logits_[6] = 1.0f;
  EXPECT_EQ(choose({.logit_bias = {{6, -100.0f}}}), 0);
  EXPECT_EQ(choose({.logit_bias = {{12, 1.5f}}}), 12);
  EXPECT_EQ(choose({.repetition_penalty = 2.0f, .logit_bias = {{4, 1.9f}}}), 6);  // 0.95: biased, then divided
}

TEST_F(Choosing, NoEndBeforeMinTokens) {
  logits_[7] = 3.0f;  // the model's end
  logits_[8] = 2.0f;
  logits_[9] = 1.0f;
  SamplingParams p{.min_tokens = 4};  // three are there
  EXPECT_EQ(choose(p), 8);
  p.stop_token_ids = {8, 1000, -1};  // ids that no token has are no error
  EXPECT_EQ(choose(p), 9);
  p.ignore_eos = true;
  EXPECT_EQ(choose(p), 7);
  p.min_tokens = 3;
  p.ignore_eos = false;
  EXPECT_EQ(choose(p), 7);
}

TEST_F(Choosing, OnlyWhatAConstraintAllows) {
  logits_[1] = 5;
  Only constraint({30, 31, 33});
  logits_[31] = -4;
  logits_[30] = logits_[33] = -5;
  EXPECT_EQ(choose({}, &constraint), 31);
  EXPECT_EQ(choose({.logit_bias = {{1, 100.0f}, {33, 2.0f}}}, &constraint), 33);
  EXPECT_EQ(choose({.temperature = 100.0f}, &constraint, 0.99f), 33);
  EXPECT_EQ(choose({.temperature = 100.0f}, &constraint, 0.0f), 30);
  EXPECT_EQ(constraint.accepted, (std::vector<TokenId>{31, 33, 33, 30}));
}

TEST_F(Choosing, WhatAConstraintRefusesIsAnError) {
  Only nothing({}), refuses({39});
  const auto error = [&](TokenConstraint& c) {
    const SamplingParams p;
    return chooser_.choose(logits_, {.params = p, .constraint = &c, .tokens = tokens_, .prompt_tokens = 3}).status().message();
  };
  EXPECT_NE(error(nothing).find("grammar"), std::string::npos);
  EXPECT_EQ(error(refuses), "not that one");
  logits_[39] = -kInf;
  EXPECT_NE(error(refuses).find("no token"), std::string::npos);
}

// Who needs nothing of this leaves choosing to the device.
TEST(ChosenByHost, OnlyWhoAsksForIt) {
  EXPECT_FALSE(is_chosen_by_host({}, false));
  EXPECT_FALSE(is_chosen_by_host({.temperature = 1, .top_k = 5, .repetition_penalty = 1.5f, .logprobs = 3}, false));
  EXPECT_TRUE(is_chosen_by_host({}, true));
  EXPECT_TRUE(is_chosen_by_host({.frequency_penalty = 0.5f}, false));
  EXPECT_TRUE(is_chosen_by_host({.presence_penalty = -0.5f}, false));
  EXPECT_TRUE(is_chosen_by_host({.logit_bias = {{1, 0.0f}}}, false));
  EXPECT_TRUE(is_chosen_by_host({.min_tokens = 1}, false));
}

}  // namespace
}  // namespace fovea
