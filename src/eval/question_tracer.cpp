#include "eval/question_tracer.h"

#include <algorithm>

namespace fovea {
namespace {

// The sentence that was planted for a question: the answer itself, or the first of a hop's two.
std::string planted(const RetrievalQuestion& q) {
  if (q.task == "absent") return {};
  if (q.task != "hop") return q.answer;
  // "A equals B, and B is V." was planted as "Let A equal B."
  const size_t equals = q.answer.find(" equals "), comma = q.answer.find(", and ");
  if (equals == std::string::npos || comma == std::string::npos || comma < equals) return {};
  return "Let " + q.answer.substr(0, equals) + " equal " + q.answer.substr(equals + 8, comma - equals - 8) + ".";
}

// Finds a question's fact in the held tokens.
Status mark_fact(const Engine& engine, const DocumentSession& session, const std::string& document,
                 const RetrievalQuestion& question, AnswerTrace* out) {
  const std::string fact = planted(question);
  const size_t at = fact.empty() ? std::string::npos : document.find(fact);
  if (at == std::string::npos) return {};
  const std::string_view text = document;
  FOVEA_ASSIGN(const std::vector<TokenId> whole, engine.tokenize(text));
  FOVEA_ASSIGN(const std::vector<TokenId> before, engine.tokenize(text.substr(0, at)));
  FOVEA_ASSIGN(const std::vector<TokenId> until, engine.tokenize(text.substr(0, at + fact.size())));
  // What the chat template puts before the document shifts everything.
  const int64_t shift = std::max<int64_t>(0, session.document_tokens() - static_cast<int64_t>(whole.size()));
  const int32_t block_size = engine.options().block_size;
  out->fact = fact;
  out->fact_first_block = static_cast<int32_t>((static_cast<int64_t>(before.size()) + shift) / block_size);
  out->fact_last_block = static_cast<int32_t>((static_cast<int64_t>(until.size()) + shift - 1) / block_size);
  return {};
}

}  // namespace

QuestionTracer::QuestionTracer(const ModelShape& shape, const RetrievalDocument& document, const EvalRun& run, int32_t count)
    : document_(document), slot_(document.questions.size(), -1), trace_{run, document.approx_tokens}, recorder_(shape, &trace_) {
  const auto all = static_cast<int64_t>(document.questions.size());
  const int64_t taken = std::min<int64_t>(count, all);
  for (int64_t i = 0; i < taken; ++i) slot_[static_cast<size_t>(i * all / taken)] = static_cast<int32_t>(i);
  trace_.answers.resize(static_cast<size_t>(taken));
}

void QuestionTracer::on_selection(size_t question, const SelectionTrace& row) {
  if (takes(question) && row.answer) recorder_.on_answer_row(row, &trace_.answers[static_cast<size_t>(slot_[question])]);
}

Result<RunTrace> QuestionTracer::finish(const Engine& engine, const DocumentSession& session, const std::vector<Answer>& answers) {
  for (size_t i = 0; i < slot_.size(); ++i) {
    if (slot_[i] < 0) continue;
    const RetrievalQuestion& q = document_.questions[i];
    const Answer& a = answers[i];
    AnswerTrace& out = trace_.answers[static_cast<size_t>(slot_[i])];
    out.task = q.task;
    out.question = q.question;
    out.wanted = q.answer;
    out.answer = a.text;
    out.right = a.text == q.answer && a.reason == FinishReason::stop;
    out.stats = a.stats;
    FOVEA_TRY(mark_fact(engine, session, document_.document, q, &out));
    for (AnswerTrace::Token& t : out.tokens) {
      const auto n = static_cast<size_t>(t.position - a.first_position);
      if (n < a.tokens.size()) t.text = engine.detokenize({&a.tokens[n], 1});
    }
  }
  return std::move(trace_);
}

}  // namespace fovea
