// Agreement: runs judged by dense attention instead of labels: how far an answer is the same, and how far apart the distributions
// of the next token are along what dense attention said.
#pragma once

#include "eval/retrieval_set.h"

#include <fovea/session.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace fovea {

struct AgreementScore {
  int64_t answers = 0;
  int64_t equal = 0;        // token for token, and ended alike
  int64_t same_tokens = 0;  // before the first difference, of those that are not
  std::vector<float> kl;    // nats: D(dense || run) of the next token, for each token of dense attention's answers

  void add(const AgreementScore& other);
  double share() const { return answers == 0 ? 1.0 : double(equal) / double(answers); }
  std::optional<double> first_difference() const;  // tokens before it, a mean; none where all are equal
  double kl_mean() const;
  double kl_p99() const;  // nearest rank
};

// What dense prefill and decode said of a question.
struct DenseAnswer {
  std::vector<TokenId> tokens;
  FinishReason reason = FinishReason::none;
  std::vector<float> logits;  // [tokens, vocab]: 4 bytes an entry of the vocabulary and token of all answers about a document
};

// D(p || q), in nats, of the distributions that two rows of logits stand for (their softmax), >= 0.
double kl_divergence(std::span<const float> p_logits, std::span<const float> q_logits);

// The reference of a document. Errors: the engine's.
Result<std::vector<DenseAnswer>> dense_answers(Engine& engine, const RetrievalDocument& document, const SamplingParams& sampling,
                                               const DocumentSession::Progress& progress);

// A score for each question. `questions` and `answers`: of a run, asked in `session`; they are asked once more, along the
// reference's tokens. Errors: the engine's.
Result<std::vector<AgreementScore>> compare_with(const std::vector<DenseAnswer>& reference, DocumentSession& session,
                                                 std::vector<Question> questions, const std::vector<Answer>& answers);

}  // namespace fovea
