// fovea bench batch: what a server's load costs the engine alone.
#include "cli/commands.h"
#include "cli/flags.h"

#include "bench/batch_bench.h"

#include <iostream>
#include <memory>
#include <sstream>

namespace fovea::cli {
namespace {

struct Flags {
  EngineFlags engine;
  BatchBenchOptions batch;
  std::string prompts;
  bool json = false;
};

Result<Report> measure(Flags& f) {
  FOVEA_ASSIGN(f.batch.engine, f.engine.options());
  FOVEA_ASSIGN(const std::string text, read_file(f.prompts));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) f.batch.prompts.push_back(line);
  }
  return bench_batch(f.batch);
}

}  // namespace

Run add_bench_batch(CLI::App& bench) {
  auto f = std::make_shared<Flags>();
  CLI::App* cmd =
      bench.add_subcommand("batch", "Answer prompts together in one engine, without a server (to see what a server costs)");
  f->engine.add_to(*cmd);
  cmd->add_option("--prompts", f->prompts, "File with one prompt per line; all are submitted at once")->required();
  cmd->add_option("--output-len", f->batch.output_tokens, "Tokens per answer")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  cmd->add_flag("--json", f->json, "Print JSON instead of a table");
  return [f] {
    const Result<Report> r = measure(*f);
    if (!r.ok()) return report(r.status());
    std::cout << (f->json ? r->json().dump(2) + "\n" : r->table());
    return 0;
  };
}

}  // namespace fovea::cli
