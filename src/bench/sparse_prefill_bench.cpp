#include "bench/sparse_prefill_bench.h"

#include "bench/cpu_layer.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <string>

namespace fovea {
namespace {

constexpr int32_t kHeads = CpuLayer::kHeads, kRows = CpuLayer::kRowsMax, kUnit = 128;

// Lists of 128-token blocks for every tile and query head.
struct MadeLists {
  Selection selection;
  std::vector<int32_t> units, counts;
  double density = 0;  // pairs of rows and keys that are read, of those there are
};

class SparsePrefill {
 public:
  static Result<std::unique_ptr<SparsePrefill>> make(int32_t head_dim, int64_t depth, ThreadPool& pool) {
    FOVEA_ASSIGN(auto layer, CpuLayer::make({.head_dim = head_dim, .tokens = depth, .rows = kRows, .xattention_stride = 8},
                                            preferred_numerics(), pool));
    std::unique_ptr<SparsePrefill> b(new SparsePrefill(std::move(layer)));
    for (double density : {0.05, 0.10, 0.30}) b->draw_lists(density);
    return b;
  }

  void attend(const Selection* selection) {
    AttentionParams p = layer_->attention();
    p.selection = selection;
    layer_->ops().paged_prefill(p, layer_->stream());
  }
  void estimate(int32_t stride) {
    const AttentionParams a = layer_->attention();
    XAttentionParams p;
    p.q = static_cast<const float*>(a.q);
    p.num_heads = kHeads;
    p.num_seqs = 1;
    p.q_indptr = a.q_indptr;
    p.seq_len = a.seq_len;
    p.kv = a.kv;
    p.scale = a.scale;
    p.stride = stride;
    p.tiles = tiles_;
    p.tile_seq = tile_seq_.data();
    p.tile_indptr = tile_indptr_.data();
    p.threshold = threshold_.data();
    p.capacity = capacity_;
    p.units = units_.data();
    p.counts = counts_.data();
    layer_->ops().xattention_select(p, layer_->stream());
  }
  const std::vector<std::unique_ptr<MadeLists>>& lists() const { return lists_; }

 private:
  explicit SparsePrefill(std::unique_ptr<CpuLayer> layer) : layer_(std::move(layer)), capacity_(*layer_->len() / kUnit) {
    tiles_ = xattention_tiles(layer_->q_indptr(), layer_->len(), 1, kUnit, tile_seq_.data(), tile_indptr_.data());
    units_.resize(int64_t{tiles_} * kHeads * capacity_);
    counts_.resize(int64_t{tiles_} * kHeads);
  }
  void draw_lists(double density) {
    lists_.push_back(std::make_unique<MadeLists>());
    MadeLists& l = *lists_.back();
    double read = 0, all = 0;
    for (int32_t t = 0; t < tiles_; ++t) {
      const int32_t blocks = (*layer_->len() - kRows + tile_indptr_[t]) / kUnit + 1, last = blocks - 1;
      const auto wanted = std::max(2, static_cast<int32_t>(std::lround(density * blocks)));
      for (int32_t h = 0; h < kHeads; ++h) {
        std::vector<int32_t> middle(blocks - 2);
        std::iota(middle.begin(), middle.end(), 1);
        std::shuffle(middle.begin(), middle.end(), layer_->rng());
        middle.resize(wanted - 2);
        middle.push_back(0);
        middle.push_back(last);
        std::sort(middle.begin(), middle.end());
        l.counts.push_back(wanted);
        middle.resize(capacity_, -1);
        l.units.insert(l.units.end(), middle.begin(), middle.end());
        const double diagonal = (kUnit + 1) / 2.0;  // keys of the last block that a row sees, on average
        read += (wanted - 1) * kUnit + diagonal;
        all += (blocks - 1) * kUnit + diagonal;
      }
    }
    l.density = read / all;
    l.selection = {.kind = Selection::Kind::list,
                   .heads = HeadGroups::per_query_head,
                   .tokens_per_unit = kUnit,
                   .rows = tiles_,
                   .groups = kHeads,
                   .capacity = capacity_,
                   .row_indptr = tile_indptr_.data(),
                   .units = l.units.data(),
                   .counts = l.counts.data()};
  }

  const std::unique_ptr<CpuLayer> layer_;
  const int32_t capacity_;
  int32_t tiles_ = 0;
  std::vector<int32_t> units_, counts_, tile_seq_ = std::vector<int32_t>(kRows), tile_indptr_ = std::vector<int32_t>(kRows + 1);
  std::vector<float> threshold_ = std::vector<float>(kHeads, 0.9f);
  std::vector<std::unique_ptr<MadeLists>> lists_;
};

std::string percent(double x) { return std::to_string(x * 100).substr(0, 4) + " %"; }

}  // namespace

Status bench_sparse_prefill(const OpsBenchOptions& o, ThreadPool& pool, Report* report) {
  const int rounds = std::max(1, o.rounds / 20);  // a dense round takes as long as hundreds of decode steps
  for (int32_t d : {64, 128}) {
    FOVEA_ASSIGN(const auto bench, SparsePrefill::make(d, o.depth, pool));
    std::vector<std::function<void()>> work = {[&] { bench->attend(nullptr); }};
    for (const auto& l : bench->lists()) work.push_back([&bench, s = &l->selection] { bench->attend(s); });
    for (int32_t stride : {16, 8}) work.push_back([&bench, stride] { bench->estimate(stride); });
    const std::vector<double> s = time_in_turn(work, rounds);
    const std::string at = " d " + std::to_string(d) + ", " + std::to_string(kRows) + " rows at " + std::to_string(o.depth);
    const auto add = [&](const std::string& name, double seconds) {
      report->add({name + at, seconds * 1e3, "ms", "time of dense prefill", s[0] * 1e3, seconds / s[0]});
    };
    report->add({"dense prefill attention" + at, s[0] * 1e3, "ms", "", 0, 0});
    for (size_t i = 0; i < bench->lists().size(); ++i)
      add("block-sparse prefill, density " + percent(bench->lists()[i]->density), s[1 + i]);
    add("XAttention estimate, stride 16", s[4]);
    add("XAttention estimate, stride 8", s[5]);
  }
  return {};
}

}  // namespace fovea
