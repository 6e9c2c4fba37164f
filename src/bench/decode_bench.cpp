#include "bench/bench.h"
#include "bench/decode_run.h"
#include "bench/gpu_layers.h"
#include "bench/sweep_memory.h"
#include "kernels/cpu/ceilings.h"
#include "sparse/gsa_on_device/replayed_gsa.h"
#include "sparse/registry.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <optional>

namespace fovea {
namespace {

constexpr int kRounds = 5;

int64_t peak_rss_bytes() {
  std::ifstream in("/proc/self/status");
  std::string word;
  while (in >> word) {
    if (word == "VmHWM:") {
      int64_t kib = 0;
      in >> kib;
      return kib * 1024;
    }
  }
  return 0;
}

void report_memory(EngineImpl& engine, int64_t tokens, int64_t peak, Report* report) {
  const double kv = static_cast<double>(engine.stats().block_bytes) * static_cast<double>(tokens) / engine.options().block_size;
  const double need = static_cast<double>(engine.model().weight_bytes) + kv;
  report->add({"peak memory (RSS)", static_cast<double>(peak) / 1e9, "GB", "weights and KV in use", need / 1e9,
               static_cast<double>(peak) / need});
}

// How fast memory that no cache holds is read.
class ReadSweep {
 public:
  explicit ReadSweep(int32_t threads) : pool_(threads) {}

  // Bytes a second, of the fastest way to read.
  double bandwidth() {
    const Clock clock;
    memory_.sweep(0, pool_);  // the first one finds the worker asleep
    double least = 1e30;
    for (int way = 0; way < cpu::kSweepWays; ++way) {
      const double start = clock.now_s();
      memory_.sweep(way, pool_);
      least = std::min(least, clock.now_s() - start);
    }
    return static_cast<double>(memory_.bytes()) / least;
  }
  int64_t bytes() const { return memory_.bytes(); }

 private:
  const SweepMemory memory_;
  ThreadPool pool_;
};

// Bytes a second of the weights in the steps of one call, and of sweeps right before and behind it: memory that other programs use
// too may give half of its speed for seconds.
struct WeightRate {
  double rate, sweep;
  double share() const { return rate / sweep; }
};

using Measured = std::pair<int64_t, std::string>;  // depth and method

// The median; where steps read one list after the other, the mean, of the call that was least disturbed.
double step_s(const StepTimes& times, const DecodeBenchOptions& o) {
  return o.replay.empty() ? spread_of(times.s).median : times.least_mean_s;
}

void report_steps(const std::map<Measured, StepTimes>& times, const std::map<Measured, RequestStats>& stats,
                  const DecodeBenchOptions& o, Report* report) {
  const double first = step_s(times.at({o.depths[0], "dense"}), o);
  for (const auto& [key, t] : times) {
    const double s = step_s(t, o);
    const std::string name = key.second + " decode at " + std::to_string(key.first) + " tokens";
    Figure step = {name + ", " + std::to_string(static_cast<int>(100 * stats.at(key).kv_bytes_share() + 0.5)) + " % of KV bytes",
                   s * 1e3, "ms/tok", "dense step at " + std::to_string(o.depths[0]), first * 1e3, s / first};
    std::vector<double> ms = t.s;
    for (double& x : ms) x *= 1e3;
    step.spread = spread_of(std::move(ms));
    report->add(std::move(step));
    report->add({name, 1 / s, "tok/s", "", 0, 0});
  }
}

// What lies between two tokens.
std::string step_text(const ModelInfo& model) {
  const std::string temperature = std::to_string(model.sampling.temperature).substr(0, 4);
  return "a step goes from token to token: forward pass, sampling of " + std::to_string(model.vocab_size) + " logits (" +
         (model.sampling.temperature > 0 ? "temperature " + temperature : "greedy") + "), counting, " +
         (model.has_tokenizer ? "text" : "no text: the model has no tokenizer");
}

// How far a step is from only reading the weights once: the call of the median share.
void report_weights(EngineImpl& engine, std::vector<WeightRate> calls, int64_t depth, Report* report) {
  std::sort(calls.begin(), calls.end(), [](const WeightRate& a, const WeightRate& b) { return a.share() < b.share(); });
  const WeightRate& middle = calls[calls.size() / 2];
  report->note("weights of type " + engine.model().weights.front().type + ", a step reads " +
               std::to_string(static_cast<double>(engine.model().step_weight_bytes) / 1e9).substr(0, 5) + " GB of them");
  report->rate("weights read by a dense step at " + std::to_string(depth), middle.rate / 1e9, "GB/s", "read sweep",
               middle.sweep / 1e9);
}

// Each depth needs lists that were recorded at it or before, and all have one budget.
Status check_replay(DecodeBenchOptions* o) {
  if (o->replay.empty()) return {};
  int64_t shortest = INT64_MAX;
  for (const RecordedLists& lists : o->replay) {
    if (lists.k != o->replay[0].k)
      return Status::invalid_argument("--replay: lists of " + std::to_string(o->replay[0].k) + " and of " +
                                      std::to_string(lists.k) + " blocks cannot be compared");
    shortest = std::min(shortest, lists.context_tokens);
  }
  for (int64_t d : o->depths) {
    if (d < shortest)
      return Status::invalid_argument("--depths " + std::to_string(d) + ": the shortest context of --replay has " +
                                      std::to_string(shortest) + " tokens");
  }
  o->budget_tokens = o->replay[0].k * o->replay[0].block_size;
  return {};
}

Result<std::unique_ptr<EngineImpl>> make_engine(const DecodeBenchOptions& o) {
  EngineParts parts;
  if (!o.replay.empty()) {
    parts.make_method = [&o](const MethodOptions& m) -> Result<std::unique_ptr<Method>> {
      if (m.name == "gsa_on_device") return std::unique_ptr<Method>(std::make_unique<ReplayedGsa>(m.gsa, o.replay));
      return make_method(m);
    };
  }
  auto engine = std::make_unique<EngineImpl>(o.engine, std::move(parts));
  FOVEA_TRY(engine->init());
  return engine;
}

}  // namespace

Result<Report> bench_decode(const DecodeBenchOptions& options) {
  DecodeBenchOptions o = options;
  FOVEA_TRY(check_replay(&o));
  if (o.depths.empty()) return Status::invalid_argument("--depths: none given");
  if (o.steps < 2) return Status::invalid_argument("--steps " + std::to_string(o.steps) + ": at least 2");
  if (o.engine.kv_offload == OffloadChoice::on) return bench_offloaded_decode(o);
  int64_t deepest = o.prefill_tokens, sum = o.prefill_tokens + 1024;
  for (int64_t d : o.depths) {
    if (d < 16) return Status::invalid_argument("--depths " + std::to_string(d) + ": at least 16 tokens");
    deepest = std::max(deepest, d);
    sum += d + o.steps + 64;
  }
  o.engine.enable_prefix_caching = false;
  o.engine.max_model_len = std::max(o.engine.max_model_len, deepest + o.steps + 64);
  MethodOptions sparse;
  sparse.name = "gsa_on_device";
  o.engine.methods = {sparse};
  FOVEA_ASSIGN(const std::unique_ptr<EngineImpl> made, make_engine(o));
  EngineImpl& engine = *made;
  DecodeRun bench(engine, {.steps = o.steps, .budget_tokens = o.budget_tokens});
  Report report;
  report.note(engine.model().architecture + ", " + std::to_string(engine.model().parameters / 1000000) + " M parameters, " +
              engine.backend());
  report.note(step_text(engine.model()));
  for (const RecordedLists& lists : o.replay)
    report.note("gsa_on_device reads what " + std::to_string(lists.rows.size()) + " rows read at " +
                std::to_string(lists.context_tokens) + " tokens of context: at most " + std::to_string(lists.k) + " blocks");

  if (o.prefill_tokens > 0) {
    FOVEA_ASSIGN(const double s, bench.prefill_s(o.prefill_tokens));
    report.add({"prefill of " + std::to_string(o.prefill_tokens) + " tokens", static_cast<double>(o.prefill_tokens) / s, "tok/s",
                "", 0, 0});
  }
  for (int64_t d : o.depths) FOVEA_TRY(bench.hold(d));
  const bool on_host = engine.device().kind() == "cpu";
  const int64_t peak_before = on_host ? peak_rss_bytes() : 0;
  std::optional<ReadSweep> sweep;
  if (on_host) sweep.emplace(engine.options().threads);
  std::map<Measured, StepTimes> times;
  std::map<Measured, RequestStats> stats;
  std::vector<WeightRate> rates;
  for (int round = 0; round < kRounds; ++round) {
    for (int64_t d : o.depths) {
      for (const char* m : {"dense", "gsa_on_device"}) {
        const bool rated = sweep && d == o.depths[0] && m == std::string("dense");
        const double before = rated ? sweep->bandwidth() : 0;
        StepTimes call;
        FOVEA_TRY(bench.decode(d, m, &call, &stats[{d, m}]));
        if (rated) {
          rates.push_back({static_cast<double>(engine.model().step_weight_bytes) / step_s(call, o), (before + sweep->bandwidth()) / 2});
        }
        times[{d, m}].add(call);
      }
    }
  }
  report_steps(times, stats, o, &report);
  if (!on_host) {
    FOVEA_ASSIGN(const double bandwidth, gpu_read_bandwidth(engine.device(), *engine.device().make_stream()));
    const double step = step_s(times.at({o.depths[0], "dense"}), o);
    rates.push_back({static_cast<double>(engine.model().step_weight_bytes) / step, bandwidth});
  }
  report_weights(engine, std::move(rates), o.depths[0], &report);
  if (on_host) report_memory(engine, sum - 1024, std::max(peak_before, peak_rss_bytes() - sweep->bytes()), &report);
  return report;
}

}  // namespace fovea
