// fovea eval: methods, budgets and block sizes judged on a retrieval set in one run.
#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/progress.h"
#include "cli/tell.h"

#include <fovea/method_specs.h>

#include "base/clock.h"
#include "eval/eval_page.h"
#include "eval/eval_plot.h"
#include "eval/eval_table.h"
#include "eval/harness.h"
#include "eval/perplexity.h"
#include "eval/trace_page.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <set>

namespace fovea::cli {
namespace {

struct EvalFlags {
  EngineFlags engine;
  std::string set;
  std::vector<std::string> prefill_methods = {"auto"}, decode_methods = {"auto"};
  EvalProduct product;
  std::string plan;
  std::string documents;
  RetrievalFilter filter;
  EvalOptions options;
  std::string format = "text", json, out;
  std::string perplexity_of;
  int32_t window = 2048;
  bool verbose = false, trace = false;
  int32_t trace_questions = 8;
};

Result<std::vector<std::string>> read_specs(const char* flag, const std::vector<std::string>& given) {
  std::string text;
  for (const std::string& g : given) text += (text.empty() ? "" : ",") + g;
  Result<std::vector<std::string>> specs = split_specs(text);
  if (!specs.ok()) return specs.status().with_context(flag);
  return specs;
}

Result<std::vector<EvalRun>> read_runs(EvalFlags& f, const std::string& model_dir) {
  if (!f.plan.empty()) return load_eval_plan(f.plan);
  FOVEA_ASSIGN(f.product.prefill_methods, read_specs("--prefill-method", f.prefill_methods));
  FOVEA_ASSIGN(f.product.decode_methods, read_specs("--decode-method", f.decode_methods));
  for (auto* methods : {&f.product.prefill_methods, &f.product.decode_methods}) {
    for (std::string& m : *methods) {
      if (m != "auto") continue;
      FOVEA_ASSIGN(m, trained_method(model_dir));
    }
  }
  return eval_runs(f.product);
}

// Each spec that the runs name, once.
std::vector<std::string> specs_of(const std::vector<EvalRun>& runs) {
  std::set<std::string> specs;
  for (const EvalRun& r : runs) specs.insert({r.prefill_method, r.decode_method});
  return {specs.begin(), specs.end()};
}

// A number takes so many documents of each length; anything else is a list of ids.
Status read_documents(const std::string& text, RetrievalFilter* filter) {
  if (text.empty()) return {};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), filter->documents);
  if (error == std::errc() && end == text.data() + text.size())
    return filter->documents >= 1 ? Status() : Status::invalid_argument("--documents " + text + ": must be >= 1");
  filter->documents = 0;
  FOVEA_ASSIGN(filter->ids, read_specs("--documents", {text}));
  return {};
}

nlohmann::ordered_json result_json(const EvalFlags& f, const EvalResult& r) {
  nlohmann::ordered_json json = {{"set", f.set}, {"model", r.model}, {"backend", r.backend}, {"rows", eval_json(r.rows)}};
  if (f.trace) json["traces"] = eval_traces_json(r.traces);
  return json;
}

// A page for each run that was traced, with all of its lengths.
Result<std::vector<EvalLink>> write_traces(const EvalFlags& f, const EvalResult& r, const std::string& about) {
  std::vector<EvalLink> links;
  for (const RunTrace& first : r.traces) {
    if (std::any_of(links.begin(), links.end(), [&](const EvalLink& l) { return l.run == first.run; })) continue;
    std::vector<RunTrace> traces;
    std::copy_if(r.traces.begin(), r.traces.end(), std::back_inserter(traces),
                 [&](const RunTrace& t) { return t.run == first.run; });
    links.push_back({first.run, "trace-" + std::to_string(links.size() + 1) + ".html"});
    FOVEA_TRY(write_file(f.out + "/" + links.back().file, trace_html(traces, first.run.block_size, about)));
  }
  return links;
}

Status write_folder(const EvalFlags& f, const EvalResult& r) {
  const std::string set = std::filesystem::path(f.set).filename().string();
  FOVEA_TRY(write_file(f.out + "/eval.json", result_json(f, r).dump(2) + "\n"));
  FOVEA_TRY(write_file(f.out + "/eval.csv", eval_csv(r.rows)));
  const std::string about = set + " · " + r.model + " · " + r.backend;
  FOVEA_ASSIGN(std::vector<EvalLink> links, write_traces(f, r, about));
  FOVEA_TRY(write_file(f.out + "/eval.html", eval_html({about, r.rows, std::move(links)})));
  return write_drawing_png(eval_plot(r.rows, "all", {"Answers against what was read", about}), f.out + "/eval.png");
}

Status write_results(const EvalFlags& f, const EvalResult& r) {
  const std::string json = result_json(f, r).dump(2) + "\n";
  if (!f.out.empty()) FOVEA_TRY(write_folder(f, r));
  if (!f.json.empty() && f.json != "-") FOVEA_TRY(write_file(f.json, json));
  const std::string format = f.json == "-" ? "json" : f.format;
  std::cout << (format == "json"       ? json
                : format == "csv"      ? eval_csv(r.rows)
                : format == "markdown" ? eval_markdown(r.rows)
                                       : eval_text(r.rows));
  std::cout.flush();
  return {};
}

void print_wrong(const RetrievalDocument& d, const RetrievalQuestion& q, const EvalRun& run, const std::string& reply) {
  std::fprintf(stderr, "%s %s, %s: %s\n  wanted %s\n  got    %s\n", d.id.c_str(), q.id.c_str(), run_label(run).c_str(),
               q.question.c_str(), q.answer.c_str(), reply.c_str());
}

// The bar of one document, with its place among all: prefills are most of the time.
void show_progress(const EvalProgress& p, size_t* shown, std::unique_ptr<Progress>* bar) {
  if (!*bar || *shown != p.step) {
    *shown = p.step;
    bar->reset();
    *bar = std::make_unique<Progress>("document " + std::to_string(p.step + 1) + " of " + std::to_string(p.steps));
  }
  (*bar)->show(p.prefilled, p.tokens);
}

Status execute_perplexity(const EvalFlags& f, EngineOptions options) {
  FOVEA_ASSIGN(const std::string text, read_file(f.perplexity_of));
  if (f.window < 2) return Status::invalid_argument("--window " + std::to_string(f.window) + ": at least 2 tokens");
  FOVEA_ASSIGN(const std::vector<std::string> methods, read_specs("--prefill-method", f.prefill_methods));
  if (methods.size() != 1) return Status::invalid_argument("--prefill-method: one with --perplexity");
  options.prefill_method = methods[0];
  options.max_num_seqs = 1;
  const double start = Clock().now_s();
  FOVEA_ASSIGN(const std::unique_ptr<Engine> engine, Engine::create(options));
  tell_loaded(*engine, Clock().now_s() - start);
  Progress bar("perplexity");
  FOVEA_ASSIGN(const Perplexity p,
               measure_perplexity(*engine, text, f.window, [&](int64_t done, int64_t of) { bar.show(done, of); }));
  bar.clear();
  if (f.json == "-" || f.format == "json") {
    const nlohmann::ordered_json json = {
        {"perplexity", p.value}, {"tokens", p.tokens}, {"window", f.window}, {"backend", engine->backend()}};
    std::cout << json.dump(2) << "\n";
  } else {
    std::cout << "perplexity " << p.value << " of " << p.tokens << " tokens\n";
  }
  return {};
}

Status execute(EvalFlags& f) {
  FOVEA_ASSIGN(const EngineOptions options, f.engine.options());
  if (f.perplexity_of.empty() == f.set.empty()) return Status::invalid_argument("--set or --perplexity: one of them is wanted");
  if (!f.perplexity_of.empty()) return execute_perplexity(f, options);
  if (f.options.max_tokens < 1)
    return Status::invalid_argument("--max-tokens " + std::to_string(f.options.max_tokens) + ": must be >= 1");
  FOVEA_ASSIGN(f.options.runs, read_runs(f, options.model_dir));
  FOVEA_TRY(read_documents(f.documents, &f.filter));
  FOVEA_ASSIGN(const std::vector<RetrievalDocument> whole, load_retrieval_set(f.set));
  FOVEA_ASSIGN(const std::vector<RetrievalDocument> set, filter_retrieval_set(whole, f.filter));
  if (f.trace && f.out.empty()) return Status::invalid_argument("--trace: its pages need --out DIR");
  if (f.trace && f.trace_questions < 1)
    return Status::invalid_argument("--trace-questions " + std::to_string(f.trace_questions) + ": must be >= 1");
  f.options.trace_questions = f.trace ? f.trace_questions : 0;
  print_notes(notes_of_specs(specs_of(f.options.runs)));
  if (!f.out.empty()) FOVEA_TRY(make_folder(f.out));  // before the hours, not after
  std::unique_ptr<Progress> bar;
  size_t shown = 0;
  f.options.progress = [&](const EvalProgress& p) { show_progress(p, &shown, &bar); };
  double loading_s = Clock().now_s();
  f.options.engine_begins = [&](const Engine& e) { tell_loaded(e, Clock().now_s() - loading_s); };
  f.options.engine_ends = [&](Engine& e) {
    bar.reset();
    tell_store(e);
    loading_s = Clock().now_s();
  };
  if (f.verbose) {
    f.options.reply = [&](const RetrievalDocument& d, const RetrievalQuestion& q, const EvalRun& run, const std::string& reply,
                          bool right) {
      if (right) return;
      if (bar) bar->clear();
      print_wrong(d, q, run, reply);
    };
  }
  FOVEA_ASSIGN(const EvalResult result, evaluate(options, set, f.options));
  bar.reset();
  return write_results(f, result);
}

void add_flags(EvalFlags& f, CLI::App& cmd) {
  const auto all = CLI::MultiOptionPolicy::TakeAll;
  f.engine.add_to(cmd, false);
  f.engine.add_store_to(cmd);
  cmd.remove_option(cmd.get_option("--block-size"));  // a list here
  cmd.add_option("--set", f.set,
                 "Retrieval set, JSON lines: {id, approx_tokens, document, questions: [{id, task, depth, question, answer}]}; with "
                 "--agreement the answers may be missing");
  cmd.add_option("--perplexity", f.perplexity_of,
                 "Instead of answers: the model's perplexity on this text, in prompts of --window tokens (dense unless "
                 "--prefill-method says otherwise); --numerics int8 measures the rounding that auto applies to answers");
  cmd.add_option("--window", f.window, "Tokens per prompt of --perplexity; all but the first are scored")->capture_default_str();
  cmd.add_option("--prefill-method", f.prefill_methods,
                 "Attention methods for prompts, comma-separated: dense,xattention[threshold=0.95]")
      ->expected(1)
      ->multi_option_policy(all)
      ->capture_default_str();
  cmd.add_option("--decode-method", f.decode_methods,
                 "Attention methods for questions and answers, comma-separated: dense,gsa_on_device,gsa_on_device[hash_bits=128]")
      ->expected(1)
      ->multi_option_policy(all)
      ->capture_default_str();
  cmd.add_option("--budget-tokens", f.product.budgets,
                 "Context tokens that each step reads, comma-separated: every sparse method runs with each value; 0: the method's "
                 "own budget")
      ->delimiter(',')
      ->capture_default_str();
  cmd.add_option("--block-size", f.product.block_sizes, "Tokens per KV block, comma-separated: everything runs with each value")
      ->delimiter(',')
      ->capture_default_str();
  auto* plan =
      cmd.add_option("--plan", f.plan,
                     "YAML list of {prefill, decode, budget_tokens, block_size}: combinations to run, instead of those four flags");
  for (const char* flag : {"--prefill-method", "--decode-method", "--budget-tokens", "--block-size"}) plan->excludes(flag);
  cmd.add_option("--lengths", f.filter.lengths, "Use only documents of these lengths (approx_tokens), comma-separated")
      ->delimiter(',');
  cmd.add_option("--documents", f.documents,
                 "Use only the first N documents of each length, or the documents with these ids, comma-separated");
  cmd.add_option("--tasks", f.filter.tasks, "Ask only the questions of these tasks, comma-separated")->delimiter(',');
  cmd.add_option("--without-tasks", f.filter.without_tasks, "Skip the questions of these tasks, comma-separated")->delimiter(',');
  cmd.add_option("--max-tokens", f.options.max_tokens, "Maximum tokens per answer")->capture_default_str();
  cmd.add_option("--format", f.format, "Format of the table on stdout: text, markdown, csv or json")
      ->check(CLI::IsMember({"text", "markdown", "csv", "json"}))
      ->capture_default_str();
  cmd.add_option("--json", f.json, "Also write the table to this file as JSON; -: to stdout, like --format json");
  cmd.add_option("--out", f.out, "Directory for eval.html (plot and table), eval.png, eval.json and eval.csv");
  cmd.add_flag("--agreement", f.options.agreement,
               "Also compare every run with dense prefill and decode: answers that are identical, tokens before the first "
               "difference, and KL divergence (nats) of the next-token distributions along dense attention's answers");
  cmd.add_flag("--trace", f.trace,
               "Also score the selected blocks against true attention, and write trace-N.html for each run to --out");
  cmd.add_option("--trace-questions", f.trace_questions, "Number of questions to trace, from the first document of each length")
      ->capture_default_str();
  cmd.add_flag("--verbose", f.verbose, "Print wrong answers");
  f.engine.add_sparse_to(cmd);
}

}  // namespace

Run add_eval(CLI::App& app) {
  auto f = std::make_shared<EvalFlags>();
  add_flags(
      *f, *app.add_subcommand("eval", "Score methods, budgets and block sizes on a retrieval set: accuracy against KV bytes read"));
  return [f] {
    const Status s = execute(*f);
    return s.ok() ? 0 : report(s);
  };
}

}  // namespace fovea::cli
