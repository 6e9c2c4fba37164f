#include "bench/bench.h"
#include "bench/decode_run.h"
#include "kv/device_extent_cache.h"
#include "kv/extent_cache.h"
#include "sparse/gsa_on_device/replayed_gsa.h"
#include "sparse/registry.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <random>

namespace fovea {
namespace {

constexpr int kRounds = 4;      // the first one warms the pool up
constexpr int64_t kRoom = 256;  // tokens beside a context and what is decoded on it

struct Lists {
  std::string label;
  std::string name;
  std::vector<RecordedLists> lists;
};

// Rows of which such a share finds its blocks in a pool of so many columns: the same ones again and again, and others that come
// back only when the pool has seen more than it holds.
RecordedLists lists_with_hits(double share, int64_t context, int32_t block_size, int32_t k, int64_t columns) {
  RecordedLists lists{.layers = 1, .kv_heads = 1, .block_size = block_size, .k = k, .context_tokens = context, .rows = {}};
  const int32_t blocks = lists.shared_blocks();
  const double misses = (1 - share) * k;  // of a row
  const auto cold = static_cast<int64_t>(std::min<double>(blocks - k, 1.5 * static_cast<double>(columns) + k));
  const int64_t rows = misses > 0 ? static_cast<int64_t>(static_cast<double>(cold) / misses) : 1;
  int64_t stride = cold * 5 / 8;  // neighbours would be one read
  while (misses > 0 && std::gcd(stride, cold) != 1) ++stride;
  for (int64_t r = 0, next = 0; r < rows; ++r) {
    const auto end = static_cast<int64_t>(misses * static_cast<double>(r + 1));
    std::vector<int32_t> list;
    for (; next < end; ++next) list.push_back(k + static_cast<int32_t>(next * stride % cold));
    for (int32_t b = 0; static_cast<int32_t>(list.size()) < k; ++b) list.push_back(b);
    std::sort(list.begin(), list.end());
    lists.rows.push_back({.step = static_cast<int32_t>(r), .position = context, .answer = true, .lists = {std::move(list)}});
  }
  return lists;
}

std::vector<Lists> lists_of(const DecodeBenchOptions& o, int64_t depth, int64_t columns) {
  const int32_t block_size = o.engine.block_size, k = o.budget_tokens / block_size;
  std::vector<Lists> all;
  if (!o.replay.empty()) return {{"recorded", "recorded lists", o.replay}};
  for (const int percent : {100, 95, 85, 61}) {
    const std::string share = std::to_string(percent);
    all.push_back(
        {"hits" + share, "lists made for " + share + " %", {lists_with_hits(percent / 100.0, depth, block_size, k, columns)}});
  }
  return all;
}

Result<std::unique_ptr<EngineImpl>> make_engine(EngineOptions o, int32_t budget_tokens, const std::vector<Lists>& all) {
  o.methods.clear();
  for (const Lists& lists : all) {
    MethodOptions m;
    m.name = "gsa_on_device";
    m.label = lists.label;
    m.gsa.budget_tokens = budget_tokens;  // what the pool is divided for
    m.gsa.prefetch = false;               // what random keys foretell is not what is read
    o.methods.push_back(m);
  }
  EngineParts parts;
  parts.make_method = [&all](const MethodOptions& m) -> Result<std::unique_ptr<Method>> {
    for (const Lists& lists : all) {
      if (lists.label == m.label) return std::unique_ptr<Method>(std::make_unique<ReplayedGsa>(m.gsa, lists.lists));
    }
    return make_method(m);
  };
  auto engine = std::make_unique<EngineImpl>(std::move(o), std::move(parts));
  FOVEA_TRY(engine->init());
  return engine;
}

// Of K and V.
int64_t kv_bytes(const ModelShape& shape, int64_t tokens) {
  return tokens * shape.num_layers * shape.kv_heads * shape.kv_bytes_per_token_head;
}

struct Pair {
  std::unique_ptr<EngineImpl> resident, offloaded;
};

// Two engines with a context of this depth. The pool of one is an eighth of its K and V, if the options do not say otherwise.
Result<Pair> make_pair_at(const DecodeBenchOptions& o, int64_t depth, const ModelShape& shape, const std::vector<Lists>& all) {
  EngineOptions both = o.engine;
  const int64_t tokens = std::max(depth + o.steps, o.prefill_tokens) + kRoom;
  both.max_model_len = tokens;
  both.kv_tokens = 0;
  Pair pair;
  EngineOptions resident = both;
  resident.kv_offload = OffloadChoice::off;
  resident.kv_host_memory_bytes = 0;
  resident.kv_store = {};
  resident.enable_prefix_caching = false;
  // On a GPU both engines take their memory at once.
  const int64_t heads = int64_t{shape.num_layers} * shape.kv_heads, whole = tokens + 2048;
  resident.kv_cache_memory_bytes = kv_bytes(shape, whole) + whole * heads * 16;
  FOVEA_ASSIGN(pair.resident, make_engine(std::move(resident), o.budget_tokens, all));
  EngineOptions small = both;
  small.tenant_salt = "bench " + std::to_string(std::random_device()());  // random K and V must never be found by others
  small.kv_tokens = tokens;
  if (small.kv_cache_memory_bytes == 0) {
    const int64_t codes = 16 * int64_t{o.engine.block_size} * shape.num_layers * shape.kv_heads;  // of a block
    const int64_t tables = pair.resident->device().kind() == "cpu"
                               ? ExtentCache::bytes_per_block(shape.num_layers, shape.kv_heads, kTablesPerSequence)
                               : DeviceExtentCache::bytes_per_block(shape.num_layers, shape.kv_heads);
    small.kv_cache_memory_bytes = kv_bytes(shape, depth) / 8 + (tokens / o.engine.block_size + 1) * (codes + tables);
    small.max_num_seqs = 1;
  }
  FOVEA_ASSIGN(pair.offloaded, make_engine(std::move(small), o.budget_tokens, all));
  return pair;
}

void report_one(const std::string& name, double resident_s, double offloaded_s, const RequestStats& r, int32_t steps,
                Report* report) {
  const double wanted = static_cast<double>(r.offload_hits + r.offload_misses), tokens = steps;
  const auto text = [](double v) {
    char digits[32];
    std::snprintf(digits, sizeof digits, "%.1f", v);
    return std::string(digits);
  };
  report->add({name + ": " + text(100 * static_cast<double>(r.offload_hits) / std::max(1.0, wanted)) + " % found, " +
                   text(static_cast<double>(r.offload_misses) / tokens) + " reads and " +
                   text(static_cast<double>(r.offload_bytes) / tokens / 1024) + " KiB a token",
               1 / offloaded_s, "tok/s", "everything in memory", 1 / resident_s, resident_s / offloaded_s});
}

Result<ModelShape> shape_of(EngineOptions o, Report* report) {
  o.kv_offload = OffloadChoice::off;
  o.kv_host_memory_bytes = o.kv_cache_memory_bytes = 0;
  o.kv_store = {};
  FOVEA_ASSIGN(const std::unique_ptr<EngineImpl> engine, make_engine(std::move(o), 0, {}));
  report->note(engine->model().architecture + ", " + std::to_string(engine->model().parameters / 1000000) + " M parameters");
  return engine->model().shape;
}

// The second of two prompts: the first one makes what is made on first use.
Status measure_prefill(int64_t tokens, DecodeRun* resident, DecodeRun* offloaded, Report* report) {
  double whole = 0, part = 0;
  for (const int64_t n : {std::min<int64_t>(tokens, 4096), tokens}) {
    FOVEA_ASSIGN(whole, resident->prefill_s(n));
    FOVEA_ASSIGN(part, offloaded->prefill_s(n));
  }
  const auto n = static_cast<double>(tokens);
  report->add({"offloaded prefill of " + std::to_string(tokens) + " tokens", n / part, "tok/s", "everything in memory", n / whole,
               whole / part});
  return {};
}

Status measure_depth(const DecodeBenchOptions& o, int64_t depth, const ModelShape& shape, Report* report) {
  const int64_t column = kv_bytes(shape, o.engine.block_size);
  const int64_t columns = (o.engine.kv_cache_memory_bytes ? o.engine.kv_cache_memory_bytes : kv_bytes(shape, depth) / 8) / column;
  const std::vector<Lists> all = lists_of(o, depth, columns);
  FOVEA_ASSIGN(const Pair pair, make_pair_at(o, depth, shape, all));
  const DecodeRunOptions run = {.steps = o.steps, .budget_tokens = o.budget_tokens};
  DecodeRun resident(*pair.resident, run), offloaded(*pair.offloaded, run);
  report->note(std::to_string(depth) + " tokens: " + pair.offloaded->backend());
  if (o.prefill_tokens > 0) FOVEA_TRY(measure_prefill(o.prefill_tokens, &resident, &offloaded, report));
  FOVEA_TRY(resident.hold(depth));
  FOVEA_TRY(offloaded.hold(depth));
  for (const Lists& lists : all) {
    StepTimes resident_times, offloaded_times;
    RequestStats stats;
    for (int round = 0; round < kRounds; ++round) {
      FOVEA_TRY(resident.decode(depth, lists.label, round == 0 ? nullptr : &resident_times, nullptr));
      FOVEA_TRY(offloaded.decode(depth, lists.label, round == 0 ? nullptr : &offloaded_times, &stats));
    }
    report_one("offloaded decode at " + std::to_string(depth) + " tokens, " + lists.name, resident_times.least_mean_s,
               offloaded_times.least_mean_s, stats, o.steps, report);
  }
  return {};
}

}  // namespace

Result<Report> bench_offloaded_decode(const DecodeBenchOptions& options) {
  DecodeBenchOptions o = options;
  if (o.steps < 8) return Status::invalid_argument("--steps " + std::to_string(o.steps) + ": at least 8 with --kv-offload on");
  o.engine.enable_prefix_caching = true;
  o.engine.sparse_min_context = 0;
  Report report;
  FOVEA_ASSIGN(const ModelShape shape, shape_of(o.engine, &report));
  for (const int64_t depth : o.depths) {
    if (depth < 64 * o.budget_tokens / 8)
      return Status::invalid_argument("--depths " + std::to_string(depth) + ": an eighth of it holds no budget of " +
                                      std::to_string(o.budget_tokens) + " tokens with --kv-offload on");
    FOVEA_TRY(measure_depth(o, depth, shape, &report));
  }
  return report;
}

}  // namespace fovea
