#include "bench/sparse_prefill_bench.h"

#include "device/stream.h"
#include "kernels/cpu/cpu_ops.h"
#include "kv/kv_cache.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <string>

namespace fovea {
namespace {

constexpr int32_t kHeads = 32, kKvHeads = 8, kPage = 16, kRows = 512, kUnit = 128;

// Lists of 128-token blocks for every tile and query head.
struct MadeLists {
  Selection selection;
  std::vector<int32_t> units, counts;
  double density = 0;  // pairs of rows and keys that are read, of those there are
};

class SparsePrefill {
 public:
  static Result<std::unique_ptr<SparsePrefill>> make(int32_t head_dim, int64_t depth, ThreadPool& pool) {
    std::unique_ptr<SparsePrefill> b(new SparsePrefill(head_dim, depth));
    KvCacheConfig c;
    c.num_layers = 1;
    c.block_size = kPage;
    c.num_blocks = static_cast<int32_t>(depth / kPage);
    c.kv_heads = kKvHeads;
    c.head_dim = head_dim;
    c.huge_pages = true;
    FOVEA_ASSIGN(b->cache_, KvCache::create(c));
    b->ops_ = make_cpu_ops(pool, preferred_numerics());
    OpsLimits limits;
    limits.max_rows = kRows;
    limits.max_len = depth;
    limits.num_heads = kHeads;
    limits.kv_heads = kKvHeads;
    limits.head_dim = head_dim;
    limits.xattention_stride = 8;
    FOVEA_TRY(b->ops_->prepare(limits));
    b->fill();
    for (double density : {0.05, 0.10, 0.30}) b->draw_lists(density);
    return b;
  }

  void attend(const Selection* selection) {
    AttentionParams p;
    p.q = q_.data();
    p.out = out_.data();
    p.num_heads = kHeads;
    p.num_seqs = 1;
    p.q_indptr = indptr_;
    p.seq_len = &len_;
    p.kv = kv();
    p.scale = 1.0f / std::sqrt(static_cast<float>(head_dim_));
    p.selection = selection;
    ops_->paged_prefill(p, stream_);
  }
  void estimate(int32_t stride) {
    XAttentionParams p;
    p.q = q_.data();
    p.num_heads = kHeads;
    p.num_seqs = 1;
    p.q_indptr = indptr_;
    p.seq_len = &len_;
    p.kv = kv();
    p.scale = 1.0f / std::sqrt(static_cast<float>(head_dim_));
    p.stride = stride;
    p.tiles = tiles_;
    p.tile_seq = tile_seq_.data();
    p.tile_indptr = tile_indptr_.data();
    p.threshold = threshold_.data();
    p.capacity = capacity_;
    p.units = units_.data();
    p.counts = counts_.data();
    ops_->xattention_select(p, stream_);
  }
  const std::vector<std::unique_ptr<MadeLists>>& lists() const { return lists_; }

 private:
  SparsePrefill(int32_t head_dim, int64_t depth) : head_dim_(head_dim), len_(static_cast<int32_t>(depth)), rng_(3) {
    table_.resize(depth / kPage);
    std::iota(table_.begin(), table_.end(), 0);
    std::shuffle(table_.begin(), table_.end(), rng_);
    capacity_ = static_cast<int32_t>(depth / kUnit);
    tiles_ = xattention_tiles(indptr_, &len_, 1, kUnit, tile_seq_.data(), tile_indptr_.data());
    units_.resize(int64_t{tiles_} * kHeads * capacity_);
    counts_.resize(int64_t{tiles_} * kHeads);
  }
  KvView kv() const {
    KvView v = cache_->kv_view(LayerIdx{0});
    v.table = {table_.data(), static_cast<int64_t>(table_.size()), 0};
    return v;
  }
  void fill() {
    std::normal_distribution<float> normal;
    q_.resize(int64_t{kRows} * kHeads * head_dim_);
    out_.resize(q_.size());
    std::vector<float> k(int64_t{kRows} * kKvHeads * head_dim_), v(k.size());
    for (auto* x : {&k, &v, &q_}) {
      for (float& f : *x) f = normal(rng_);
    }
    std::vector<int64_t> slots(kRows);
    KvWriteParams w;
    w.tokens = kRows;
    w.num_heads = kHeads;
    w.q = q_.data();
    w.k = k.data();
    w.v = v.data();
    w.slot_mapping = slots.data();
    w.kv = cache_->kv_view(LayerIdx{0});
    for (int64_t at = 0; at < len_; at += kRows) {
      for (int64_t i = 0; i < kRows; ++i) slots[i] = int64_t{table_[(at + i) / kPage]} * kPage + (at + i) % kPage;
      k[at % k.size()] += 1;  // no two chunks alike
      ops_->kv_write(w, stream_);
    }
  }
  void draw_lists(double density) {
    lists_.push_back(std::make_unique<MadeLists>());
    MadeLists& l = *lists_.back();
    double read = 0, all = 0;
    for (int32_t t = 0; t < tiles_; ++t) {
      const int32_t blocks = (len_ - kRows + tile_indptr_[t]) / kUnit + 1, last = blocks - 1;
      const auto wanted = std::max(2, static_cast<int32_t>(std::lround(density * blocks)));
      for (int32_t h = 0; h < kHeads; ++h) {
        std::vector<int32_t> middle(blocks - 2);
        std::iota(middle.begin(), middle.end(), 1);
        std::shuffle(middle.begin(), middle.end(), rng_);
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

  int32_t head_dim_, len_, tiles_ = 0, capacity_ = 0;
  std::mt19937 rng_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<CpuOps> ops_;
  CpuStream stream_;
  const int32_t indptr_[2] = {0, kRows};
  std::vector<int32_t> table_, units_, counts_, tile_seq_ = std::vector<int32_t>(kRows), tile_indptr_ = std::vector<int32_t>(kRows + 1);
  std::vector<float> q_, out_, threshold_ = std::vector<float>(kHeads, 0.9f);
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
