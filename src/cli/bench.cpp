// fovea bench: every figure beside a ceiling measured in the same run.
#include "cli/commands.h"
#include "cli/flags.h"

#include "base/cores.h"
#include "bench/bench.h"
#include "eval/depth_page.h"
#include "eval/lists_file.h"
#include "eval/locality.h"

#include <nlohmann/json.hpp>

#include <iostream>
#include <memory>

namespace fovea::cli {
namespace {

struct BenchFlags {
  OpsBenchOptions ops;
  PrefillBenchOptions prefill;
  DecodeBenchOptions decode;
  RestartBenchOptions restart;
  StoreBenchOptions store;
  EngineFlags engine;
  std::string numerics = "auto", weights;
  std::string device = "cpu";
  std::vector<std::string> lists, wider, replay, prefill_replay;
  std::string runs, out, title, subtitle;
  bool json = false;
  CLI::App* what = nullptr;
};

Result<WeightType> weight_type_of(const std::string& name) {
  std::string all;
  for (int i = 0; i < kWeightTypes; ++i) {
    const auto type = static_cast<WeightType>(i);
    if (weight_type_name(type) == name || (name == "fp8" && type == WeightType::fp8_e4m3)) return type;
    all += (i > 0 ? ", " : "") + std::string(weight_type_name(type));
  }
  return Status::invalid_argument("--weights " + name + ": not one of " + all);
}

Result<Report> measure(BenchFlags& f) {
  const std::string what = f.what->get_subcommands().at(0)->get_name();
  if (what == "ops") return f.device == "cuda" ? bench_gpu_ops(f.ops) : bench_ops(f.ops);
  if (what == "prefill") {
    f.prefill.numerics = f.numerics == "f32"    ? NumericsChoice::f32
                         : f.numerics == "bf16" ? NumericsChoice::bf16
                                                : NumericsChoice::automatic;
    for (const std::string& path : f.prefill_replay) {
      FOVEA_ASSIGN(RecordedLists lists, load_lists(path));
      f.prefill.replay.push_back(std::move(lists));
    }
    return f.prefill.replay.empty() ? bench_prefill(f.prefill) : bench_prefill_replay(f.prefill);
  }
  if (what == "store") return bench_store(f.store);
  if (what == "restart") {
    FOVEA_ASSIGN(f.restart.engine, f.engine.options());
    f.restart.budget_tokens = f.engine.budget_tokens;
    return bench_restart(f.restart);
  }
  FOVEA_ASSIGN(f.decode.engine, f.engine.options());
  for (const std::string& path : f.replay) {
    FOVEA_ASSIGN(RecordedLists lists, load_lists(path));
    f.decode.replay.push_back(std::move(lists));
  }
  if (!f.weights.empty()) {
    FOVEA_ASSIGN(f.decode.engine.dummy_weight_type, weight_type_of(f.weights));
    f.decode.engine.dummy_weights = true;
  }
  return bench_decode(f.decode);
}

Status show_locality(const BenchFlags& f) {
  std::string text;
  auto json = nlohmann::ordered_json::array();
  if (!f.wider.empty() && f.wider.size() != f.lists.size())
    return Status::invalid_argument("--wider: one file for each of --lists is wanted");
  for (size_t i = 0; i < f.lists.size(); ++i) {
    RecordedLists wider;
    FOVEA_ASSIGN(const RecordedLists lists, load_lists(f.lists[i]));
    if (!f.wider.empty()) {
      FOVEA_ASSIGN(wider, load_lists(f.wider[i]));
    }
    FOVEA_ASSIGN(const LocalityTable table, locality_table(f.lists[i], lists, f.wider.empty() ? nullptr : &wider));
    text += (text.empty() ? "" : "\n") + locality_text(table);
    json.push_back(locality_json(table));
  }
  std::cout << (f.json ? json.dump(2) + "\n" : text);
  return {};
}

Status draw_runs(const BenchFlags& f) {
  FOVEA_ASSIGN(const std::string text, read_file(f.runs));
  FOVEA_ASSIGN(const std::vector<DepthRun> runs, parse_depth_runs(text, f.runs));
  FOVEA_TRY(make_folder(f.out));
  FOVEA_TRY(write_file(f.out + "/depths.html", depth_html(runs, f.title, f.subtitle)));
  FOVEA_TRY(write_drawing_png(depth_plot(runs, f.title, f.subtitle), f.out + "/depths.png"));
  std::cout << depth_text(runs);
  return {};
}

CLI::App* add_restart(CLI::App& bench, BenchFlags& f) {
  CLI::App* restart = bench.add_subcommand("restart",
                                           "Time to first token for a document that an earlier engine left in --kv-store, measured "
                                           "twice, beside that of computing it. What is written to the store stays there");
  f.engine.add_to(*restart);
  f.engine.add_store_to(*restart);
  restart->add_option("--depths", f.restart.depths, "Document lengths in tokens, comma-separated")
      ->delimiter(',')
      ->capture_default_str();
  restart->add_option("--question-tokens", f.restart.question_tokens, "Length of the question in tokens")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  restart->add_option("--steps", f.restart.steps, "Length of the answer in tokens")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  return restart;
}

}  // namespace

Run add_bench(CLI::App& app) {
  auto f = std::make_shared<BenchFlags>();
  f->ops.threads = f->prefill.threads = usable_cores();
  CLI::App* cmd = app.add_subcommand("bench", "Benchmark kernels and the engine against this machine's roofline");
  f->what = cmd;
  cmd->require_subcommand(1);
  const auto add_json = [f](CLI::App* sub) { sub->add_flag("--json", f->json, "Print JSON instead of a table"); };

  CLI::App* ops =
      cmd->add_subcommand("ops", "Decode attention, hash-code selection and sparse attention, against memory bandwidth");
  ops->add_option("--device", f->device, "cpu, or cuda (with its own depths and batch sizes, and prefill attention)")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  ops->add_option("--threads", f->ops.threads, "Number of worker threads")->check(CLI::Range(1, 1024))->capture_default_str();
  ops->add_option("--depth", f->ops.depth, "Context length in tokens, a multiple of 512")->capture_default_str();
  ops->add_option("--budget-tokens", f->ops.budget_tokens, "Tokens that sparse attention reads")->capture_default_str();
  ops->add_option("--rounds", f->ops.rounds, "Measurement rounds; the best one counts")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  add_json(ops);

  CLI::App* prefill = cmd->add_subcommand(
      "prefill", "Linear layers against the library's best GEMM, and prefill attention against peak arithmetic throughput");
  prefill->add_option("--threads", f->prefill.threads, "Number of worker threads")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  prefill->add_option("--numerics", f->numerics, "Arithmetic: auto, f32 or bf16")
      ->check(CLI::IsMember({"auto", "f32", "bf16"}))
      ->capture_default_str();
  prefill->add_option("--depths", f->prefill.depths, "Context lengths in tokens, comma-separated")
      ->delimiter(',')
      ->capture_default_str();
  prefill->add_option("--rounds", f->prefill.rounds, "Measurement rounds; the best one counts")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  prefill
      ->add_option("--replay", f->prefill_replay,
                   "Instead, on a GPU: attention over the lists in these files from fovea trace --prefill-lists, comma-separated, "
                   "and the estimate that selects them, against dense prefill")
      ->delimiter(',');
  add_json(prefill);

  CLI::App* decode = cmd->add_subcommand("decode",
                                         "Whole decode steps at several context lengths, dense and sparse, and peak memory. With "
                                         "--kv-offload on: sparse steps with a pool for an eighth of the context's K and V (or of "
                                         "the size of --kv-cache-memory), beside one that holds everything, at several hit rates");
  f->engine.add_to(*decode, false);
  f->engine.add_store_to(*decode);
  decode->add_option("--depths", f->decode.depths, "Context lengths in tokens, comma-separated")
      ->delimiter(',')
      ->capture_default_str();
  decode->add_option("--steps", f->decode.steps, "Tokens decoded per context length and round")->capture_default_str();
  auto* budget =
      decode->add_option("--budget-tokens", f->decode.budget_tokens, "Tokens that a sparse step reads")->capture_default_str();
  decode
      ->add_option("--replay", f->replay,
                   "Sparse steps read the lists in these files from fovea trace --lists, comma-separated: at each context length "
                   "those with the longest context that fits")
      ->delimiter(',')
      ->excludes(budget);
  decode->add_option("--weights", f->weights,
                     "Random weights of this type, where --dummy-weights makes bf16: q8_0, q4_k, fp8_e4m3, int4 and so on");
  decode->add_option("--prefill", f->decode.prefill_tokens, "Also prefill this many tokens for real");
  add_json(decode);

  add_json(add_restart(*cmd, *f));

  CLI::App* store = cmd->add_subcommand(
      "store",
      "Random reads of a file by size, queue depth and I/O method, then extents loaded through a store, against raw reads");
  store->add_option("--dir", f->store.dir, "Directory on the disk to measure; what is written there is removed again")
      ->required()
      ->check(CLI::ExistingDirectory);
  store
      ->add_option("--size", f->store.file_bytes,
                   "Size of the file and of the store, e.g. 4G; more than memory defeats the page cache")
      ->transform(CLI::AsSizeValue(false))
      ->default_str("1G");
  store->add_option("--depths", f->store.depths, "Queue depths, 1 to 64, comma-separated")->delimiter(',')->capture_default_str();
  store->add_option("--seconds", f->store.seconds, "Seconds per measurement of raw reads")
      ->check(CLI::Range(0.001, 60.0))
      ->capture_default_str();
  store->add_option("--rounds", f->store.rounds, "Rounds of loads through the store, in turn with raw reads")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  add_json(store);

  CLI::App* locality = cmd->add_subcommand(
      "locality", "How often recorded lists find their blocks in a pool smaller than the context (simulated; nothing is timed)");
  locality->add_option("--lists", f->lists, "Files from fovea trace --lists, comma-separated")->delimiter(',')->required();
  locality
      ->add_option("--wider", f->wider,
                   "Files of the same questions with a larger budget, one per file of --lists: how well the blocks ranked behind "
                   "the k-th predict the next step")
      ->delimiter(',');
  add_json(locality);

  CLI::App* page =
      cmd->add_subcommand("page", "Plot runs of `fovea run --json` against context length: a table, depths.png and depths.html");
  page->add_option("--runs", f->runs, "Runs, JSON lines: {series, wanted, memory_bytes, run} (docs/cli.md)")->required();
  page->add_option("--out", f->out, "Directory for depths.html and depths.png, created if missing")->required();
  page->add_option("--title", f->title, "Title of the plot and the page");
  page->add_option("--subtitle", f->subtitle, "Line below the title");
  const Run batch = add_bench_batch(*cmd), serve = add_bench_serve(*cmd);
  return [f, batch, serve] {
    if (f->what->got_subcommand("batch")) return batch();
    if (f->what->got_subcommand("serve")) return serve();
    if (f->what->got_subcommand("locality") || f->what->got_subcommand("page")) {
      const Status s = f->what->got_subcommand("page") ? draw_runs(*f) : show_locality(*f);
      return s.ok() ? 0 : cli::report(s);
    }
    const Result<Report> report = measure(*f);
    if (!report.ok()) return cli::report(report.status());
    std::cout << (f->json ? report->json().dump(2) + "\n" : report->table());
    return 0;
  };
}

}  // namespace fovea::cli
