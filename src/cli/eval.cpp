// fovea eval: a retrieval set, any methods and budgets in one run.
#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/progress.h"

#include "eval/retrieval.h"

#include <nlohmann/json.hpp>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>

namespace fovea::cli {
namespace {

struct EvalFlags {
  EngineFlags engine;
  std::string set;
  std::vector<std::string> methods = {"dense"};
  std::vector<int32_t> budgets = {0};
  RetrievalOptions options;
  std::string json;
  bool verbose = false;
};

// Dense once, whatever the budgets; every other method at each of them.
std::vector<RetrievalRun> runs_of(const EvalFlags& f) {
  std::vector<RetrievalRun> runs;
  for (const std::string& m : f.methods) {
    if (m == "dense") {
      runs.push_back({m, 0});
      continue;
    }
    for (int32_t b : f.budgets) runs.push_back({m, b});
  }
  return runs;
}

nlohmann::ordered_json rows_json(const std::vector<RetrievalRow>& rows) {
  auto list = nlohmann::ordered_json::array();
  for (const RetrievalRow& r : rows) {
    list.push_back({{"method", r.method},
                    {"budget_tokens", r.budget_tokens},
                    {"length", r.length},
                    {"task", r.task},
                    {"right", r.right},
                    {"total", r.total},
                    {"kv_bytes_share", r.kv_bytes_share()}});
  }
  return list;
}

Status execute(EvalFlags& f) {
  for (int32_t b : f.budgets) {
    if (b < 0) return Status::invalid_argument("--budget-tokens " + std::to_string(b) + ": must be >= 0");
  }
  FOVEA_ASSIGN(const std::vector<RetrievalDocument> set, load_retrieval_set(f.set));
  FOVEA_ASSIGN(EngineOptions options, f.engine.options());
  for (const std::string& m : f.methods) {
    bool known = m == "dense";
    for (const MethodOptions& o : options.methods) known |= o.name == m;
    if (!known) options.methods.push_back({m, "", GsaOptions{}});
  }
  FOVEA_ASSIGN(const std::unique_ptr<Engine> engine, Engine::create(std::move(options)));
  f.options.runs = runs_of(f);
  Progress bar("reading");
  f.options.progress = [&](const RetrievalProgress& p) { bar.show(p.prefilled, p.tokens); };
  if (f.verbose) {
    f.options.reply = [&](const RetrievalDocument& d, const RetrievalQuestion& q, const RetrievalRun& run, const std::string& reply, bool right) {
      if (right) return;
      bar.clear();
      std::fprintf(stderr, "%s %s %s/%d: %s\n  wanted %s\n  got    %s\n", d.id.c_str(), q.id.c_str(), run.method.c_str(), run.budget_tokens,
                   q.question.c_str(), q.answer.c_str(), reply.c_str());
    };
  }
  FOVEA_ASSIGN(const std::vector<RetrievalRow> rows, run_retrieval(*engine, set, f.options));
  bar.clear();
  const nlohmann::ordered_json json = {{"set", f.set}, {"backend", engine->backend()}, {"rows", rows_json(rows)}};
  if (f.json == "-") {
    std::cout << json.dump(2) << "\n";
    return {};
  }
  std::cout << retrieval_table(rows);
  if (f.json.empty()) return {};
  std::ofstream out(f.json);
  out << json.dump(2) << "\n";
  return out.good() ? Status() : Status::io_error("--json " + f.json + ": cannot be written");
}

}  // namespace

Run add_eval(CLI::App& app) {
  auto f = std::make_shared<EvalFlags>();
  CLI::App* cmd = app.add_subcommand("eval", "Score methods and budgets on a retrieval set: answers against bytes read");
  f->engine.add_to(*cmd, false);
  cmd->add_option("--set", f->set, "JSON lines: {id, approx_tokens, document, questions: [{id, task, depth, question, answer}]}")->required();
  cmd->add_option("--decode-method", f->methods, "Methods, comma-separated: dense, gsa_on_device")->delimiter(',')->capture_default_str();
  cmd->add_option("--budget-tokens", f->budgets, "Budgets, comma-separated; 0: the method's own")->delimiter(',')->capture_default_str();
  cmd->add_option("--lengths", f->options.lengths, "Only documents of these approx_tokens, comma-separated")->delimiter(',');
  cmd->add_option("--max-tokens", f->options.max_tokens, "Most tokens of an answer")->capture_default_str();
  cmd->add_option("--json", f->json, "Write the rows to this file; - for stdout instead of the table");
  cmd->add_flag("--verbose", f->verbose, "Print wrong answers");
  f->engine.add_sparse_to(*cmd);
  return [f] {
    const Status s = execute(*f);
    return s.ok() ? 0 : report(s);
  };
}

}  // namespace fovea::cli
