#include "eval/question_tracer.h"

#include "eval/trace.h"

#include <algorithm>

namespace fovea {

QuestionTracer::QuestionTracer(const ModelShape& shape, const RetrievalDocument& document, const EvalRun& run, int32_t count)
    : document_(document), slot_(document.questions.size(), -1), trace_{run, document.approx_tokens}, recorder_(shape, &trace_) {
  const auto all = static_cast<int64_t>(document.questions.size());
  const int64_t taken = std::min<int64_t>(count, all);
  for (int64_t i = 0; i < taken; ++i) slot_[static_cast<size_t>(i * all / taken)] = static_cast<int32_t>(i);
  trace_.answers.resize(static_cast<size_t>(taken));
}

void QuestionTracer::on_selection(size_t question, const SelectionTrace& row) {
  if (takes(question)) recorder_.on_answer_row(row, &trace_.answers[static_cast<size_t>(slot_[question])]);
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
    FOVEA_ASSIGN(const FactPlace fact, find_fact(engine, session, document_, q));
    out.fact_first_block = fact.first_block;
    out.fact_last_block = fact.last_block;
    // The row at position first + n produced the answer's token n.
    const int64_t first = session.document_tokens() + static_cast<int64_t>(a.prompt.size()) - 1;
    for (AnswerTrace::Token& t : out.tokens) {
      const auto n = static_cast<size_t>(t.position - first);
      if (n < a.tokens.size()) t.text = engine.detokenize({&a.tokens[n], 1});
    }
  }
  return std::move(trace_);
}

}  // namespace fovea
