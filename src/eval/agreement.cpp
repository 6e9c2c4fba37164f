#include "eval/agreement.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace fovea {
namespace {

double log_sum_exp(std::span<const float> logits) {
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float x : logits) sum += std::exp(static_cast<double>(x) - most);
  return most + std::log(sum);
}

// Asks all questions; `logits` gets the row that each token was taken from.
Result<std::vector<Answer>> ask_all(DocumentSession& session, const std::vector<Question>& questions,
                                    const SamplingParams& sampling, const DocumentSession::LogitsSink& logits) {
  FOVEA_ASSIGN(std::vector<Answer> answers, session.ask(questions, sampling, nullptr, nullptr, logits));
  for (const Answer& a : answers) FOVEA_TRY(a.error);
  return answers;
}

}  // namespace

void AgreementScore::add(const AgreementScore& other) {
  answers += other.answers;
  equal += other.equal;
  same_tokens += other.same_tokens;
  kl.insert(kl.end(), other.kl.begin(), other.kl.end());
}

std::optional<double> AgreementScore::first_difference() const {
  if (equal == answers) return std::nullopt;
  return static_cast<double>(same_tokens) / static_cast<double>(answers - equal);
}

double AgreementScore::kl_mean() const {
  return kl.empty() ? 0.0 : std::accumulate(kl.begin(), kl.end(), 0.0) / static_cast<double>(kl.size());
}

double AgreementScore::kl_p99() const {
  if (kl.empty()) return 0;
  std::vector<float> sorted = kl;
  const auto rank = static_cast<std::ptrdiff_t>((sorted.size() * 99 + 99) / 100) - 1;
  std::nth_element(sorted.begin(), sorted.begin() + rank, sorted.end());
  return static_cast<double>(sorted[static_cast<size_t>(rank)]);
}

double kl_divergence(std::span<const float> p_logits, std::span<const float> q_logits) {
  const double p_sum = log_sum_exp(p_logits), q_sum = log_sum_exp(q_logits);
  double divergence = 0;
  for (size_t i = 0; i < p_logits.size(); ++i) {
    const double p = static_cast<double>(p_logits[i]) - p_sum, q = static_cast<double>(q_logits[i]) - q_sum;
    divergence += std::exp(p) * (p - q);
  }
  return std::max(0.0, divergence);  // rounding
}

Result<std::vector<DenseAnswer>> dense_answers(Engine& engine, const RetrievalDocument& document, const SamplingParams& sampling,
                                               const DocumentSession::Progress& progress) {
  FOVEA_ASSIGN(const std::unique_ptr<DocumentSession> session, DocumentSession::open(engine, document.document, progress, "dense"));
  std::vector<Question> questions;
  for (const RetrievalQuestion& q : document.questions) questions.push_back({.text = q.question, .decode_method = "dense"});
  std::vector<DenseAnswer> out(questions.size());
  FOVEA_ASSIGN(std::vector<Answer> answers, ask_all(*session, questions, sampling, [&](size_t q, std::span<const float> row) {
                 out[q].logits.insert(out[q].logits.end(), row.begin(), row.end());
               }));
  for (size_t i = 0; i < answers.size(); ++i) {
    out[i].tokens = std::move(answers[i].tokens);
    out[i].reason = answers[i].reason;
  }
  return out;
}

Result<std::vector<AgreementScore>> compare_with(const std::vector<DenseAnswer>& reference, DocumentSession& session,
                                                 std::vector<Question> questions, const std::vector<Answer>& answers) {
  std::vector<AgreementScore> scores(questions.size());
  SamplingParams sampling;
  for (size_t i = 0; i < questions.size(); ++i) {
    const DenseAnswer& dense = reference[i];
    AgreementScore& score = scores[i];
    score.answers = 1;
    score.equal = answers[i].tokens == dense.tokens && answers[i].reason == dense.reason;
    const auto differ = std::mismatch(dense.tokens.begin(), dense.tokens.end(), answers[i].tokens.begin(), answers[i].tokens.end());
    if (!score.equal) score.same_tokens = differ.first - dense.tokens.begin();
    questions[i].given_answer = dense.tokens;
    questions[i].trace = questions[i].trace_mass = false;
    sampling.max_tokens = std::max(sampling.max_tokens, static_cast<int32_t>(dense.tokens.size()));
  }
  const auto compare = [&](size_t q, std::span<const float> row) {
    const std::span<const float> all = reference[q].logits;
    scores[q].kl.push_back(static_cast<float>(kl_divergence(all.subspan(scores[q].kl.size() * row.size(), row.size()), row)));
  };
  FOVEA_TRY(ask_all(session, questions, sampling, compare).status());
  return scores;
}

}  // namespace fovea
