// Sparse prefill attention through lists that XAttention chose on a real prompt, beside causal dense attention of as many tokens:
// the heads of an 8B model on a GPU.
#include "bench/bench.h"
#include "bench/gpu_layers.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>
#include <string>

namespace fovea {
namespace {

constexpr int32_t kHeads = 32, kMostRounds = 5;

using BlockLists = std::vector<std::vector<int32_t>>;

// Head h of call c reads the list that head c * kHeads + h of the recorded ones (layer by layer) read, over and over: heads that
// shared keys where they were recorded stand side by side here. A list that is not there read everything.
BlockLists lists_of_call(const RecordedLists& recorded, int32_t call) {
  const int32_t heads = recorded.layers * recorded.kv_heads;
  BlockLists lists;
  for (const RecordedRow& row : recorded.rows) {
    for (int32_t h = 0; h < kHeads; ++h) {
      std::vector<int32_t> list = row.lists[static_cast<size_t>((call * kHeads + h) % heads)];
      if (list.empty()) {
        list.resize(static_cast<size_t>(row.position / recorded.block_size) + 1);
        std::iota(list.begin(), list.end(), 0);
      }
      lists.push_back(std::move(list));
    }
  }
  return lists;
}

class PrefillReplay {
 public:
  PrefillReplay(int rounds, Device& device, Stream& stream, Report* report)
      : rounds_(std::min(rounds, kMostRounds)), device_(device), stream_(stream), report_(report) {}

  Status run(const RecordedLists& recorded, int32_t head_dim) {
    const auto tokens = static_cast<int32_t>(recorded.rows.size()) * recorded.block_size;
    const GpuLayersShape shape = {
        .layers = 1, .tokens = tokens, .head_dim = head_dim, .rows = tokens, .xattention_stride = 16, .unit = recorded.block_size};
    FOVEA_ASSIGN(const auto g, GpuLayers::make(shape, device_, stream_));
    FOVEA_ASSIGN(const double dense, g->time_op(&GpuLayers::prefill, rounds_));
    FOVEA_ASSIGN(const double estimate, g->time_op(&GpuLayers::estimate, rounds_));
    const int32_t heads = recorded.layers * recorded.kv_heads, calls = std::lcm(heads, kHeads) / kHeads;
    double sparse = 0, pairs = 0;
    for (int32_t call = 0; call < calls; ++call) {
      FOVEA_ASSIGN(const double held, g->place_lists(lists_of_call(recorded, call)));
      FOVEA_ASSIGN(const double s, g->time_op(&GpuLayers::sparse_prefill, rounds_));
      sparse += s / calls;
      pairs += held / calls;
    }
    const double all = kHeads * (tokens / 2.0) * (tokens + 1.0), density = pairs / all;
    const auto rate = [&](double of, double s) { return 4.0 * of * head_dim / s / 1e12; };
    char text[100];
    std::snprintf(text, sizeof text, "%.1f %% of the pairs, %d tokens, d %d", 100 * density, tokens, head_dim);
    const std::string at = text;
    report_->add({"dense prefill, " + std::to_string(tokens) + " tokens, d " + std::to_string(head_dim), rate(all, dense),
                  "TFLOP/s", "", 0, 0});
    report_->add({"estimate and choice, stride 16", estimate * 1e3, "ms", "time of dense prefill", dense * 1e3, estimate / dense});
    report_->rate("recorded lists, " + at, rate(pairs, sparse), "TFLOP/s", "dense prefill", rate(all, dense));
    report_->add({"  speedup of estimate + attention", dense / (estimate + sparse), "x", "", 0, 0});
    FOVEA_ASSIGN(const double held, g->draw_lists(density));
    FOVEA_ASSIGN(const double drawn, g->time_op(&GpuLayers::sparse_prefill, rounds_));
    report_->rate("lists drawn at random, as dense", rate(held, drawn), "TFLOP/s", "dense prefill", rate(all, dense));
    return {};
  }

 private:
  const int rounds_;
  Device& device_;
  Stream& stream_;
  Report* report_;
};

Status check(const RecordedLists& lists) {
  if (lists.block_size != 64 && lists.block_size != 128)
    return Status::invalid_argument("--replay: the lists hold blocks of " + std::to_string(lists.block_size) +
                                    " tokens: those of fovea trace --prefill-lists are wanted");
  for (size_t i = 0; i < lists.rows.size(); ++i) {
    if (lists.rows[i].position / lists.block_size != static_cast<int64_t>(i))
      return Status::invalid_argument("--replay: row " + std::to_string(i) + " is not that of block " + std::to_string(i));
  }
  return {};
}

}  // namespace

Result<Report> bench_prefill_replay(const PrefillBenchOptions& options) {
  for (const RecordedLists& lists : options.replay) FOVEA_TRY(check(lists));
  FOVEA_ASSIGN(const std::unique_ptr<Device> device, make_cuda_device());
  const std::unique_ptr<Stream> stream = device->make_stream();
  Report report;
  report.note(
      device->description() +
      "; bf16 K and V, 32 query and 8 KV heads, blocks of 16; medians over replays of captured graphs; the estimate is that of "
      "random queries and keys");
  PrefillReplay replay(options.rounds, *device, *stream, &report);
  for (const RecordedLists& lists : options.replay) {
    for (const int32_t head_dim : {128, 64}) FOVEA_TRY(replay.run(lists, head_dim));
  }
  return report;
}

}  // namespace fovea
