// fovea trace: questions of a set answered dense and sparse side by side, and a picture of what the sparse one read.
#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/progress.h"

#include <fovea/session.h>

#include "base/clock.h"
#include "eval/lists_file.h"
#include "eval/question_tracer.h"
#include "eval/reading_map.h"
#include "eval/retrieval_set.h"
#include "eval/trace_page.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>

namespace fovea::cli {
namespace {

struct TraceFlags {
  EngineFlags engine;
  std::string set;
  std::string document;
  std::string out;
  std::string lists, prefill_lists;
  int32_t max_tokens = 48;
  bool json = false;
};

double rate(const RequestStats& s) { return s.decode_s > 0 ? static_cast<double>(s.output_tokens - 1) / s.decode_s : 0; }

// An answer on one line of a table: its line breaks as spaces, a long one cut short.
std::string one_line(std::string answer) {
  constexpr size_t kMost = 42;
  std::replace(answer.begin(), answer.end(), '\n', ' ');
  if (answer.size() <= kMost) return answer;
  size_t end = kMost - 1;
  while (end > 0 && (static_cast<unsigned char>(answer[end]) & 0xc0) == 0x80) --end;  // never half a character
  return answer.substr(0, end) + "…  ";  // three bytes for one column: the width counts bytes
}

void print_line(const char* method, const RetrievalQuestion& q, const Answer& a) {
  std::printf("   %-14s %s %-42s reads %5.1f %%   first token %-8s %5.0f tok/s\n", method, a.text == q.answer ? "✓" : "✗",
              one_line(a.text).c_str(), 100 * a.stats.kv_bytes_share(), duration_text(a.stats.ttft_s).c_str(), rate(a.stats));
  std::fflush(stdout);
}

using Json = nlohmann::ordered_json;

Status write_pictures(const RunTrace& trace, const std::string& about, const std::string& out) {
  FOVEA_TRY(write_file(out + "/reading-map.html", trace_html({trace}, trace.run.block_size, about)));
  const auto drawable = [](const AnswerTrace& a) { return !a.tokens.empty(); };
  const auto telling = [&](const AnswerTrace& a) { return drawable(a) && a.right && a.fact_first_block >= 0; };
  // The picture of one question says enough; the page has all.
  auto shown = std::find_if(trace.answers.begin(), trace.answers.end(), telling);
  if (shown == trace.answers.end()) shown = std::find_if(trace.answers.begin(), trace.answers.end(), drawable);
  if (shown == trace.answers.end()) return Status::invalid_argument("no question was answered: there is nothing to draw");
  return write_drawing_png(reading_map(trace, *shown), out + "/reading-map.png");
}

Json answer_json(const RetrievalQuestion& q, const Answer& dense, const Answer& sparse) {
  return {{"question", q.question},
          {"wanted", q.answer},
          {"dense", dense.text},
          {"sparse", sparse.text},
          {"kv_bytes_share", sparse.stats.kv_bytes_share()},
          {"dense_tokens_per_s", rate(dense.stats)},
          {"sparse_tokens_per_s", rate(sparse.stats)}};
}

// Each question dense, then through the method that is traced.
Result<RunTrace> compare(const TraceFlags& f, Engine& engine, DocumentSession& session, const RetrievalDocument& document,
                         ListsRecorder* lists, Json* json) {
  const EngineOptions& o = engine.options();
  const auto count = static_cast<int32_t>(document.questions.size());
  QuestionTracer tracer(engine.model().shape, document, {o.prefill_method, o.decode_method, f.engine.budget_tokens, o.block_size},
                        count);
  SamplingParams sampling;
  sampling.max_tokens = f.max_tokens;
  const auto ask = [&](size_t i, const std::string& method, int32_t budget, bool trace) -> Result<Answer> {
    FOVEA_ASSIGN(std::vector<Answer> answers, session.ask({{document.questions[i].question, method, budget, trace}}, sampling,
                                                          nullptr, [&](size_t, const SelectionTrace& t) {
                                                            tracer.on_selection(i, t);
                                                            lists->on_selection(i, t);
                                                          }));
    FOVEA_TRY(answers[0].error);
    return std::move(answers[0]);
  };
  std::vector<Answer> traced;
  for (size_t i = 0; i < document.questions.size(); ++i) {
    const RetrievalQuestion& q = document.questions[i];
    if (!f.json) std::printf("\n?  %s\n", q.question.c_str());
    FOVEA_ASSIGN(const Answer dense, ask(i, "dense", 0, false));
    FOVEA_ASSIGN(Answer sparse, ask(i, o.decode_method, f.engine.budget_tokens, true));
    if (!f.json) {
      print_line("dense", q, dense);
      print_line(o.decode_method.c_str(), q, sparse);
    }
    json->push_back(answer_json(q, dense, sparse));
    traced.push_back(std::move(sparse));
  }
  return tracer.finish(engine, session, traced);
}

Result<RetrievalDocument> read_document(const TraceFlags& f) {
  FOVEA_ASSIGN(std::vector<RetrievalDocument> set, load_retrieval_set(f.set));
  auto at = set.begin();
  if (!f.document.empty()) at = std::find_if(at, set.end(), [&](const RetrievalDocument& d) { return d.id == f.document; });
  if (at == set.end()) return Status::invalid_argument("--document " + f.document + ": " + f.set + " has none of this id");
  if (at->questions.empty()) return Status::invalid_argument(f.set + ": document " + at->id + " has no questions");
  return std::move(*at);
}

Status write_lists(const std::string& path, const char* flag, const RecordedLists& lists) {
  if (lists.rows.empty())
    return Status::invalid_argument(std::string(flag) + ": every row read all of the context, nothing was chosen");
  return write_file(path, print_lists(lists));
}

Status execute(TraceFlags& f) {
  const bool asks = !f.out.empty() || !f.lists.empty();
  if (!asks && f.prefill_lists.empty())
    return Status::invalid_argument("trace writes nothing: --out DIR, --lists FILE or --prefill-lists FILE is wanted");
  FOVEA_ASSIGN(const RetrievalDocument document, read_document(f));
  FOVEA_ASSIGN(EngineOptions options, f.engine.options());
  if (!f.out.empty()) FOVEA_TRY(make_folder(f.out));
  FOVEA_ASSIGN(const std::unique_ptr<Engine> engine, Engine::create(std::move(options)));
  Progress bar("reading");
  const double start = Clock().now_s();
  PrefillListsRecorder prefill_lists(engine->model().shape);
  DocumentSession::PrefillTraceSink sink;
  if (!f.prefill_lists.empty()) sink = [&](const SelectionTrace& t) { prefill_lists.on_selection(t); };
  FOVEA_ASSIGN(const std::unique_ptr<DocumentSession> session,
               DocumentSession::open(
                   *engine, document.document, [&](int64_t done, int64_t total) { bar.show(done, total); }, {}, sink));
  bar.clear();
  const double read_s = Clock().now_s() - start;
  if (!f.json)
    std::printf("read %lld tokens in %s (%.0f tok/s), %s\n", static_cast<long long>(session->document_tokens()),
                duration_text(read_s).c_str(), static_cast<double>(session->document_tokens()) / read_s, engine->backend().c_str());
  if (!f.prefill_lists.empty()) FOVEA_TRY(write_lists(f.prefill_lists, "--prefill-lists", prefill_lists.lists()));
  if (!asks) return {};
  Json json = Json::array();
  ListsRecorder lists(engine->model().shape, session->document_tokens());
  FOVEA_ASSIGN(const RunTrace trace, compare(f, *engine, *session, document, &lists, &json));
  const std::string about =
      std::filesystem::path(f.set).filename().string() + " · " + engine->model().architecture + " · " + engine->backend();
  if (!f.lists.empty()) FOVEA_TRY(write_lists(f.lists, "--lists", lists.lists()));
  if (!f.out.empty()) FOVEA_TRY(write_pictures(trace, about, f.out));
  if (f.json) {
    std::cout << json.dump(2) << "\n";
    return {};
  }
  if (!f.out.empty()) std::printf("\nwhat each token read: %s/reading-map.html and .png\n", f.out.c_str());
  if (!f.lists.empty()) std::printf("\nlists of %zu rows: %s\n", lists.lists().rows.size(), f.lists.c_str());
  return {};
}

}  // namespace

Run add_trace(CLI::App& app) {
  auto f = std::make_shared<TraceFlags>();
  CLI::App* cmd = app.add_subcommand("trace", "Answer a set's questions dense and sparse, and plot what the sparse run read");
  f->engine.decode_method = "gsa_on_device";
  f->engine.budget_tokens = 512;
  f->engine.add_to(*cmd);
  cmd->add_option("--set", f->set, "Retrieval set (JSON lines; see tools/make_set.py)")->required();
  cmd->add_option("--document", f->document, "Id of the document to read (default: the set's first)");
  cmd->add_option("--out", f->out, "Directory for reading-map.html and reading-map.png");
  cmd->add_option(
      "--lists", f->lists,
      "File for the blocks that each row of questions and answers selected, by layer and KV head (JSON lines; see bench locality)");
  cmd->add_option("--prefill-lists", f->prefill_lists,
                  "File for the blocks that --prefill-method xattention selected while reading the document (JSON lines; see bench "
                  "prefill --replay); without --out and --lists, no questions are asked");
  cmd->add_option("--max-tokens", f->max_tokens, "Maximum tokens per answer")->capture_default_str();
  cmd->add_flag("--json", f->json, "Print JSON instead of text");
  return [f] {
    const Status s = execute(*f);
    return s.ok() ? 0 : report(s);
  };
}

}  // namespace fovea::cli
