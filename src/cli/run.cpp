// fovea run: answers about a file, or to a prompt.
#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/progress.h"
#include "cli/tell.h"

#include <fovea/session.h>

#include "base/clock.h"

#include <nlohmann/json.hpp>

#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>

namespace fovea::cli {
namespace {

using Json = nlohmann::ordered_json;

struct RunFlags {
  EngineFlags engine;
  std::string file;
  std::vector<std::string> questions;
  std::string prompt;
  SamplingOverrides asked;
  std::string template_kwargs;
  SamplingParams sampling;  // asked, over the model's own
  bool json = false;
};

struct Printed {
  std::string question;
  Answer answer;
};

Json prefetch_json(const PrefetchStats& s) {
  return {{"hits", s.hits},       {"late", s.late},   {"wasted", s.wasted},   {"cancelled", s.cancelled},
          {"skipped", s.skipped}, {"bytes", s.bytes}, {"queue_s", s.queue_s}, {"queue_time", s.queue_time}};
}

Json stats_json(const Printed& p) {
  const RequestStats& s = p.answer.stats;
  return {{"question", p.question},
          {"answer", p.answer.text},
          {"finish_reason", finish_reason_name(p.answer.reason)},
          {"prompt_tokens", s.prompt_tokens},
          {"cached_tokens", s.cached_tokens},
          {"loaded_tokens", s.loaded_tokens},
          {"output_tokens", s.output_tokens},
          {"ttft_s", s.ttft_s},
          {"decode_s", s.decode_s},
          {"kv_bytes_read", s.kv_bytes_read},
          {"summary_bytes_read", s.summary_bytes_read},
          {"kv_bytes_dense", s.kv_bytes_dense},
          {"kv_bytes_share", s.kv_bytes_share()},
          {"offload_hits", s.offload_hits},
          {"offload_misses", s.offload_misses},
          {"offload_bytes", s.offload_bytes},
          {"offload_s", s.offload_s},
          {"prefetch", prefetch_json(s.prefetch)}};
}

Json store_json(const EngineStats& s) {
  return {{"stored_blocks", s.stored_blocks},
          {"unstored_blocks", s.unstored_blocks},
          {"repaired_blocks", s.repaired_blocks},
          {"error", s.store_error}};
}

Json memory_json(const KvMemory& m) {
  return {{"pool", m.pool}, {"summaries", m.summaries}, {"tables", m.tables}, {"read_ahead", m.read_ahead}, {"host", m.host}};
}

// One question on an open document, streamed to stdout unless JSON was asked for.
Result<Answer> ask_one(const Engine& engine, DocumentSession& session, const std::string& text, const RunFlags& f) {
  Question q;
  q.text = text;
  q.budget_tokens = f.engine.budget_tokens;
  const auto stream = [&](size_t, const Output& out) {
    if (f.json) return;
    std::fwrite(out.text.data(), 1, out.text.size(), stdout);
    std::fflush(stdout);
  };
  FOVEA_ASSIGN(std::vector<Answer> answers, session.ask({q}, f.sampling, stream));
  if (!answers[0].error.ok()) return answers[0].error;
  if (!f.json) {
    std::printf("\n");
    std::fflush(stdout);
    tell_answer(answers[0].stats, engine.options().decode_method);
  }
  return std::move(answers[0]);
}

// Questions from the flags, else one per line of stdin.
bool next_question(const RunFlags& f, size_t index, bool interactive, std::string* question) {
  if (!f.questions.empty()) {
    if (index >= f.questions.size()) return false;
    *question = f.questions[index];
    if (!f.json) std::fprintf(stderr, "\n?  %s\n", question->c_str());
    return true;
  }
  do {
    if (interactive) std::fprintf(stderr, "\n?  ");
    if (!std::getline(std::cin, *question)) return false;
  } while (question->empty());
  return true;
}

Status answer_document(Engine& engine, const RunFlags& f, std::string document, Json* json) {
  Progress progress("reading");
  const double start = Clock().now_s();
  Result<std::unique_ptr<DocumentSession>> opened =
      DocumentSession::open(engine, std::move(document), [&](int64_t done, int64_t total) { progress.show(done, total); });
  progress.clear();
  if (!opened.ok()) return std::move(opened).status().with_context(f.file);
  DocumentSession& session = **opened;
  const double read_s = Clock().now_s() - start;
  const double tokens = static_cast<double>(session.document_tokens());
  const double share = session.prefill_stats().prefill_share();
  if (!f.json) {
    std::fprintf(stderr, "read %.0f tokens in %s (%.0f tok/s)", tokens, duration_text(read_s).c_str(), tokens / read_s);
    if (share < 1) std::fprintf(stderr, " with %.1f %% of the attention", 100 * share);
    if (!engine.options().kv_store.dir.empty()) std::fprintf(stderr, ": %s", sources_text(session.prefill_stats()).c_str());
    std::fprintf(stderr, "\n");
  }
  (*json)["document_tokens"] = session.document_tokens();
  (*json)["document_computed_tokens"] = session.prefill_stats().computed_tokens();
  (*json)["document_loaded_tokens"] = session.prefill_stats().loaded_tokens;
  (*json)["prefill_s"] = read_s;
  (*json)["prefill_share"] = session.prefill_stats().prefill_pairs_dense > 0 ? Json(share) : Json();
  std::string question;
  for (size_t i = 0; next_question(f, i, !f.json, &question); ++i) {
    FOVEA_ASSIGN(Answer answer, ask_one(engine, session, question, f));
    (*json)["answers"].push_back(stats_json({question, std::move(answer)}));
  }
  return {};
}

Status answer_prompt(Engine& engine, const RunFlags& f, Json* json) {
  Request r;
  FOVEA_ASSIGN(r.prompt, chat_prompt(engine, f.prompt));
  r.sampling = f.sampling;
  r.budget_tokens = f.engine.budget_tokens;
  const int64_t total = static_cast<int64_t>(r.prompt.size());
  FOVEA_ASSIGN(const RequestId id, engine.submit(std::move(r)));
  Progress progress("reading");
  Printed printed{f.prompt, {}};
  std::vector<Output> outputs;
  for (bool more = true; more && printed.answer.reason == FinishReason::none;) {
    outputs.clear();
    FOVEA_ASSIGN(more, engine.step(&outputs));
    progress.show(engine.computed_tokens(id), total);
    for (const Output& out : outputs) {
      progress.clear();
      printed.answer.text += out.text;
      if (!f.json) std::fwrite(out.text.data(), 1, out.text.size(), stdout);
      if (!out.finished) continue;
      FOVEA_TRY(out.error);
      printed.answer.reason = out.reason;
      printed.answer.stats = out.stats;
    }
    if (!f.json) std::fflush(stdout);
  }
  if (!f.json) {
    std::printf("\n");
    std::fflush(stdout);
    tell_answer(printed.answer.stats, engine.options().decode_method);
  }
  (*json)["answers"].push_back(stats_json(printed));
  return {};
}

Status execute(RunFlags f) {
  if (f.file.empty() == f.prompt.empty()) return Status::invalid_argument("run needs --file or --prompt, and not both");
  if (!f.prompt.empty() && !f.questions.empty()) return Status::invalid_argument("--question goes with --file");
  FOVEA_ASSIGN(EngineOptions options, f.engine.options());
  options.chat_template_kwargs = f.template_kwargs;
  std::string document;  // read first: a wrong path should not cost a model's loading
  if (!f.file.empty()) {
    FOVEA_ASSIGN(document, read_file(f.file));
  }
  const double start = Clock().now_s();
  FOVEA_ASSIGN(const std::unique_ptr<Engine> engine, Engine::create(std::move(options)));
  const ModelInfo& m = engine->model();
  f.sampling = f.asked.over(m.sampling);
  if (!f.json) tell_loaded(*engine, Clock().now_s() - start);
  if (m.max_model_len > m.max_position_embeddings)
    std::fprintf(stderr,
                 "fovea: warning: --max-model-len %lld exceeds the model's max_position_embeddings %lld: answers may degrade\n",
                 static_cast<long long>(m.max_model_len), static_cast<long long>(m.max_position_embeddings));
  const EngineOptions& o = engine->options();
  Json json = {{"model", m.architecture},
               {"decode_method", o.decode_method},
               {"prefill_method", o.prefill_method},
               {"backend", engine->backend()}};
  json["answers"] = Json::array();
  FOVEA_TRY(f.file.empty() ? answer_prompt(*engine, f, &json) : answer_document(*engine, f, std::move(document), &json));
  tell_store(*engine);
  json["store"] = store_json(engine->stats());
  json["kv_memory_bytes"] = memory_json(engine->kv_memory());
  if (f.json) std::cout << json.dump(2) << "\n";
  return {};
}

}  // namespace

Run add_run(CLI::App& app) {
  auto f = std::make_shared<RunFlags>();
  CLI::App* cmd = app.add_subcommand("run", "Answer questions about a document, or a single prompt");
  f->engine.add_to(*cmd);
  f->engine.add_store_to(*cmd);
  cmd->add_option(
      "--file", f->file,
      "Document to read once and answer every --question about; without --question, the lines of stdin are the questions");
  cmd->add_option("--question", f->questions, "Question about --file; may be repeated")
      ->take_all()
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  cmd->add_option("--prompt", f->prompt, "Prompt to answer, without a document");
  add_sampling_to(*cmd, &f->asked, &f->template_kwargs);
  cmd->add_flag("--json", f->json, "Print one JSON object instead of text");
  return [f] {
    const Status s = execute(*f);
    return s.ok() ? 0 : report(s);
  };
}

}  // namespace fovea::cli
