// Traces a sample of one document's questions while a run answers them.
#pragma once

#include "eval/attention_trace.h"
#include "eval/retrieval_set.h"

#include <fovea/session.h>

#include <vector>

namespace fovea {

class QuestionTracer {
 public:
  // Takes `count` of the document's questions, evenly spread in its order (tasks and depths are mixed there); 0: none.
  QuestionTracer(const ModelShape& shape, const RetrievalDocument& document, const EvalRun& run, int32_t count);

  bool takes(size_t question) const { return slot_[question] >= 0; }
  void on_selection(size_t question, const SelectionTrace& row);
  // The answers are there: gives the rows their tokens and marks the planted facts.
  Result<RunTrace> finish(const Engine& engine, const DocumentSession& session, const std::vector<Answer>& answers);

 private:
  const RetrievalDocument& document_;
  std::vector<int32_t> slot_;  // [questions] index into answers of the trace; -1: not taken
  RunTrace trace_;
  TraceRecorder recorder_;
};

}  // namespace fovea
