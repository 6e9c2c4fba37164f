// What the tests of contexts larger than the pool ask of engines, and how answers are compared.
#pragma once

#include "engine_test_util.h"

#include "engine/lying_store_test_util.h"

#include <functional>
#include <map>
#include <vector>

namespace fovea::testing {

// Tokens of a document that ends in the middle of a block of 16, several times the budget; 8 before it and after it a block ends.
constexpr int64_t kDocument = kSanitized ? 312 : 600;

// A held document and questions about it, one after the other, each answered by its own fork.
inline std::vector<Result1> ask(Engine& e, int64_t document_tokens, int questions = 2,
                                const std::function<void(int)>& before = nullptr) {
  const auto vocab = e.model().vocab_size;
  Request document = greedy(random_prompt(7, document_tokens, vocab), 0);
  document.hold = true;
  const auto held = e.submit(document);
  EXPECT_TRUE(held.ok()) << held.status().message();
  std::vector<Result1> results;
  const Answers read = run_all(e);
  EXPECT_EQ(read.begin()->second.reason, FinishReason::length) << read.begin()->second.error.message();
  for (int i = 0; i < questions; ++i) {
    if (before) before(i);
    Request question = greedy(random_prompt(100 + static_cast<uint64_t>(i), 21, vocab), 6);
    question.fork_of = *held;
    results.push_back(run_one(e, question));
    EXPECT_EQ(results.back().reason, FinishReason::length) << results.back().error.message();
  }
  e.release(*held);
  run_all(e);
  return results;
}

// Five forks of a held document that answer side by side: tokens by request.
inline std::map<uint64_t, std::vector<TokenId>> answers_of_forks(Engine& e) {
  const auto vocab = e.model().vocab_size;
  Request document = greedy(random_prompt(7, kDocument + 1, vocab), 0);
  document.hold = true;
  const auto held = e.submit(document);
  run_all(e);
  for (uint64_t i = 0; i < 5; ++i) {
    Request question = greedy(random_prompt(200 + i, 5 + 4 * static_cast<int64_t>(i), vocab), 9);
    question.fork_of = *held;
    EXPECT_TRUE(e.submit(question).ok());
  }
  std::map<uint64_t, std::vector<TokenId>> tokens;
  for (const auto& [id, answer] : run_all(e)) {
    EXPECT_EQ(answer.reason, FinishReason::length) << answer.error.message();
    tokens[id.first] = answer.tokens;
  }
  e.release(*held);
  run_all(e);
  return tokens;
}

// Loses the places of answers' blocks, so many of them at most. Their keys differ in their first bytes alone.
inline std::shared_ptr<LyingStore> loses_answers(int at_most) {
  auto store = std::make_shared<LyingStore>();
  store->loses = [left = at_most, first = std::map<std::vector<uint8_t>, uint8_t>()](const ExtentRead& read) mutable {
    const auto& key = read.key.bytes;
    return first.try_emplace({key.begin() + 8, key.end()}, key[0]).first->second != key[0] && left-- > 0;
  };
  return store;
}

// tolerance 0: bit for bit.
inline void expect_same(const std::vector<Result1>& got, const std::vector<Result1>& want, float tolerance = 0) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(got[i].tokens, want[i].tokens) << "question " << i;
    ASSERT_EQ(got[i].logits.size(), want[i].logits.size()) << "question " << i;
    for (size_t t = 0; t < want[i].logits.size(); ++t) {
      const float off = max_difference(got[i].logits[t], want[i].logits[t]);
      ASSERT_TRUE(tolerance == 0 ? got[i].logits[t] == want[i].logits[t] : off <= tolerance)
          << "question " << i << " token " << t << ", by up to " << off;
    }
  }
}

}  // namespace fovea::testing
