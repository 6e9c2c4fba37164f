// The harness: configurations judged by their answers about documents, against what they read. Behind `fovea eval`.
//
// A document is prefilled once for all runs of a prefill method, and each question forks it; question and answer tokens go
// through the run's decode method. A reply is right if it equals the expected answer and stops there.
#pragma once

#include "eval/attention_trace.h"
#include "eval/eval_plan.h"
#include "eval/eval_score.h"
#include "eval/retrieval_set.h"

#include <fovea/engine.h>

#include <functional>
#include <string>
#include <vector>

namespace fovea {

struct EvalProgress {
  size_t step = 0, steps = 0;         // a step: a document prefilled and asked by all runs that share the prefill
  int64_t prefilled = 0, tokens = 0;  // of its document
};

struct EvalOptions {
  std::vector<EvalRun> runs;
  int32_t max_tokens = 48;      // of an answer: longer than any right one
  bool agreement = false;       // also compare every run with dense prefill and decode
  int32_t trace_questions = 0;  // of the first document of each length, traced in every run that is not all dense; CPU only
  std::function<void(const EvalProgress&)> progress;  // null: no one watches
  // Told of the engine of each block size, once it is loaded and before it goes (may be null).
  std::function<void(Engine&)> engine_begins, engine_ends;
  // Told of every reply to a question of which the right answer is known (may be null).
  std::function<void(const RetrievalDocument&, const RetrievalQuestion&, const EvalRun&, const std::string& reply, bool right)>
      reply;
};

struct EvalResult {
  std::string model;  // architecture and size
  std::string backend;
  std::vector<EvalRow> rows;
  std::vector<RunTrace> traces;
};

// Runs everything, with an engine for each block size, one after the other. `engine` holds what the runs do not say; a bare
// method name takes its options from engine.methods where they are there. Errors: a method that is unknown or cannot serve
// its phase (before anything is loaded), a
// question without an answer and without agreement, and whatever the engine refuses.
Result<EvalResult> evaluate(const EngineOptions& engine, const std::vector<RetrievalDocument>& set, const EvalOptions& options);

}  // namespace fovea
