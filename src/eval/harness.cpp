#include "eval/harness.h"

#include "eval/agreement.h"
#include "eval/question_tracer.h"

#include <fovea/method_specs.h>
#include <fovea/session.h>

#include <algorithm>
#include <cstdio>
#include <memory>

namespace fovea {
namespace {

template <typename T>
void add_once(const T& value, std::vector<T>* list) {
  if (std::find(list->begin(), list->end(), value) == list->end()) list->push_back(value);
}

// Runs of one block size that share their prefill, as indices into EvalOptions::runs.
struct Lineage {
  std::string prefill_method;
  std::vector<size_t> runs;
};

std::vector<Lineage> lineages_of(const std::vector<EvalRun>& runs, int32_t block_size) {
  std::vector<Lineage> out;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].block_size != block_size) continue;
    auto at = std::find_if(out.begin(), out.end(), [&](const Lineage& l) { return l.prefill_method == runs[i].prefill_method; });
    if (at == out.end()) at = out.insert(out.end(), {runs[i].prefill_method, {}});
    at->runs.push_back(i);
  }
  return out;
}

std::string model_text(const ModelInfo& m) {
  char text[160];
  std::snprintf(text, sizeof(text), "%s, %.1f M parameters", m.architecture.c_str(), static_cast<double>(m.parameters) / 1e6);
  return text;
}

// The methods a run names, held by the engine that serves it.
Status hold_methods(const EvalRun& run, EngineOptions* engine) {
  FOVEA_TRY(hold_method("--prefill-method", run.prefill_method, true, engine));
  return hold_method("--decode-method", run.decode_method, false, engine);
}

class Harness {
 public:
  Harness(const EngineOptions& engine, const std::vector<RetrievalDocument>& set, const EvalOptions& options)
      : base_(engine), set_(set), options_(options), scores_(options.runs) {}

  Result<EvalResult> run() {
    std::vector<int32_t> block_sizes;
    for (const EvalRun& r : options_.runs) add_once(r.block_size, &block_sizes);
    for (int32_t size : block_sizes) progress_.steps += lineages_of(options_.runs, size).size() * set_.size();
    for (int32_t size : block_sizes) FOVEA_TRY(run_block_size(size));
    result_.rows = scores_.rows();
    return std::move(result_);
  }

 private:
  Status run_block_size(int32_t block_size) {
    EngineOptions o = base_;
    o.block_size = block_size;
    for (const EvalRun& r : options_.runs) {
      if (r.block_size == block_size) FOVEA_TRY(hold_methods(r, &o));
    }
    FOVEA_ASSIGN(const std::unique_ptr<Engine> engine, Engine::create(std::move(o)));
    result_.model = model_text(engine->model());
    result_.backend = engine->backend();
    if (options_.engine_begins) options_.engine_begins(*engine);
    std::vector<int64_t> lengths;  // seen so far
    for (const RetrievalDocument& d : set_) {
      const bool first = std::find(lengths.begin(), lengths.end(), d.approx_tokens) == lengths.end();
      if (first) lengths.push_back(d.approx_tokens);
      if (options_.agreement) {
        FOVEA_ASSIGN(reference_, dense_answers(*engine, d, sampling(), report_));
      }
      for (const Lineage& lineage : lineages_of(options_.runs, block_size)) {
        if (Status s = run_document(*engine, d, lineage, first ? options_.trace_questions : 0); !s.ok())
          return s.with_context("document " + d.id);
        ++progress_.step;
      }
    }
    if (options_.engine_ends) options_.engine_ends(*engine);
    return {};
  }

  void report(int64_t done, int64_t total) {
    progress_.prefilled = done;
    progress_.tokens = total;
    if (options_.progress) options_.progress(progress_);
  }

  SamplingParams sampling() const {
    SamplingParams s;
    s.max_tokens = options_.max_tokens;
    return s;
  }

  Status run_document(Engine& engine, const RetrievalDocument& d, const Lineage& lineage, int32_t trace_questions) {
    RunTrace traced;
    TraceRecorder recorder(engine.model().shape, &traced);
    DocumentSession::PrefillTraceSink sink;
    if (trace_questions > 0 && lineage.prefill_method != "dense")
      sink = [&](const SelectionTrace& t) { recorder.on_prefill_row(t); };
    FOVEA_ASSIGN(const std::unique_ptr<DocumentSession> session,
                 DocumentSession::open(engine, d.document, report_, lineage.prefill_method, sink));
    recorder.finish_prefill();
    const RequestStats& prefill = session->prefill_stats();
    for (size_t run : lineage.runs) {
      if (prefill.prefill_pairs_dense > 0)
        scores_.add_prefill(d.approx_tokens, run, prefill.prefill_pairs_read, prefill.prefill_pairs_dense);
      FOVEA_TRY(ask(engine, *session, d, run, trace_questions, traced.prefill));
    }
    return {};
  }

  Status ask(Engine& engine, DocumentSession& session, const RetrievalDocument& d, size_t run, int32_t trace_questions,
             const PrefillTrace& prefill) {
    const EvalRun& r = options_.runs[run];
    QuestionTracer tracer(engine.model().shape, d, r, r.decode_method == "dense" ? 0 : trace_questions);
    std::vector<Question> questions;
    for (size_t i = 0; i < d.questions.size(); ++i)
      questions.push_back({d.questions[i].question, r.decode_method, r.budget_tokens, tracer.takes(i), tracer.takes(i)});
    FOVEA_ASSIGN(
        const std::vector<Answer> answers,
        session.ask(questions, sampling(), nullptr, [&](size_t i, const SelectionTrace& t) { tracer.on_selection(i, t); }));
    for (size_t i = 0; i < answers.size(); ++i) {
      const RetrievalQuestion& q = d.questions[i];
      if (!answers[i].error.ok()) return answers[i].error.with_context(run_label(r));
      std::optional<bool> right;
      if (!q.answer.empty()) right = answers[i].text == q.answer && answers[i].reason == FinishReason::stop;
      scores_.add_answer(d.approx_tokens, run, q.task, right, answers[i].stats);
      if (options_.reply && right) options_.reply(d, q, r, answers[i].text, *right);
    }
    if (options_.agreement) {
      FOVEA_ASSIGN(const std::vector<AgreementScore> scores, compare_with(reference_, session, questions, answers));
      for (size_t i = 0; i < scores.size(); ++i) scores_.add_agreement(d.approx_tokens, run, d.questions[i].task, scores[i]);
    }
    if (trace_questions == 0 || (r.decode_method == "dense" && prefill.units == 0)) return {};
    FOVEA_ASSIGN(RunTrace trace, tracer.finish(engine, session, answers));
    if (r.decode_method != "dense") scores_.set_trace(d.approx_tokens, run, trace.score());
    trace.prefill = prefill;
    result_.traces.push_back(std::move(trace));
    return {};
  }

  const EngineOptions& base_;
  const std::vector<RetrievalDocument>& set_;
  const EvalOptions& options_;
  EvalScores scores_;
  EvalProgress progress_;
  const DocumentSession::Progress report_ = [this](int64_t done, int64_t total) { report(done, total); };
  std::vector<DenseAnswer> reference_;  // of the document at hand
  EvalResult result_;
};

}  // namespace

Result<EvalResult> evaluate(const EngineOptions& engine, const std::vector<RetrievalDocument>& set, const EvalOptions& options) {
  EngineOptions checked = engine;  // every name, before a model is loaded
  for (const EvalRun& r : options.runs) FOVEA_TRY(hold_methods(r, &checked));
  for (const RetrievalDocument& d : set) {
    for (const RetrievalQuestion& q : d.questions) {
      if (q.answer.empty() && !options.agreement)
        return Status::invalid_argument("question " + q.id +
                                        " has no answer: agreement with dense attention (--agreement) judges it");
    }
  }
  return Harness(engine, set, options).run();
}

}  // namespace fovea
