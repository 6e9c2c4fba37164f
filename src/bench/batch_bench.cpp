#include "bench/batch_bench.h"

#include "base/clock.h"

#include <fovea/engine.h>

#include <algorithm>
#include <memory>

namespace fovea {
namespace {

Status submit_all(Engine& engine, const BatchBenchOptions& o) {
  for (size_t i = 0; i < o.prompts.size(); ++i) {
    Request r;
    FOVEA_ASSIGN(r.prompt, engine.tokenize(o.prompts[i]));
    r.sampling.max_tokens = o.output_tokens;
    r.sampling.ignore_eos = true;
    if (const Result<RequestId> id = engine.submit(std::move(r)); !id.ok())
      return id.status().with_context("prompt " + std::to_string(i + 1));
  }
  return {};
}

double quantile(std::vector<double>& values, double share) {
  if (values.empty()) return 0;
  const auto at = values.begin() + static_cast<ptrdiff_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

}  // namespace

Result<Report> bench_batch(const BatchBenchOptions& o) {
  if (o.prompts.empty()) return Status::invalid_argument("--prompts: there are none");
  FOVEA_ASSIGN(const std::unique_ptr<Engine> engine, Engine::create(o.engine));
  FOVEA_TRY(submit_all(*engine, o));
  const size_t full = std::min(o.prompts.size(), static_cast<size_t>(engine->options().max_num_seqs));
  const Clock clock;
  const double begin = clock.now_s();
  std::vector<double> full_steps_s;
  std::vector<Output> outputs;
  size_t unfinished = o.prompts.size(), tokens = 0;
  while (unfinished > 0) {
    outputs.clear();
    const double start = clock.now_s();
    FOVEA_ASSIGN(const bool more, engine->step(&outputs));
    const double took = clock.now_s() - start;
    size_t got = 0;
    for (const Output& out : outputs) {
      FOVEA_TRY(out.error);
      got += out.tokens.size();
      unfinished -= out.finished;
    }
    tokens += got;
    if (got == full) full_steps_s.push_back(took);
    if (!more && unfinished > 0) return Status::internal("the engine stopped before all prompts were answered");
  }
  const double took = clock.now_s() - begin;
  const double steps = static_cast<double>(engine->stats().steps);
  Report report;
  report.note(std::to_string(o.prompts.size()) + " prompts, " + std::to_string(tokens) + " tokens of answers, " + engine->backend());
  report.add({"in all", took, "s", "", 0, 0});
  report.add({"steps", steps, "", "", 0, 0});
  report.add({"step, mean", took / steps * 1e3, "ms", "", 0, 0});
  report.add({"full steps", static_cast<double>(full_steps_s.size()), "", "", 0, 0});
  report.add({"full step, median", quantile(full_steps_s, 0.5) * 1e3, "ms", "", 0, 0});
  report.add({"full step, p99", quantile(full_steps_s, 0.99) * 1e3, "ms", "", 0, 0});
  report.add({"answers", static_cast<double>(tokens) / took, "tok/s", "", 0, 0});
  return report;
}

}  // namespace fovea
