#include "base/thread_pool.h"
#include "bench/bench.h"
#include "bench/index_bench.h"
#include "bench/mla_bench.h"
#include "bench/sparse_prefill_bench.h"
#include "device/stream.h"
#include "kernels/cpu/ceilings.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/common/convert.h"
#include "kernels/common/hash_rotation.h"
#include "kv/kv_cache.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace fovea {
namespace {

constexpr int32_t kHeads = 32, kKvHeads = 8, kBlock = 16, kBits = 128;

// One layer's cache of one sequence, its pages in random order, filled with random keys, values and codes.
class OneLayer {
 public:
  static Result<std::unique_ptr<OneLayer>> make(int32_t head_dim, const OpsBenchOptions& o, ThreadPool& pool) {
    std::unique_ptr<OneLayer> l(new OneLayer);
    KvCacheConfig c;
    c.num_layers = 1;
    c.block_size = kBlock;
    c.num_blocks = static_cast<int32_t>(o.depth / kBlock);
    c.kv_heads = kKvHeads;
    c.head_dim = head_dim;
    c.huge_pages = true;
    c.extra_planes = {{"codes", kKvHeads, int64_t{kBlock} * kBits / 8, Residency::resident}};
    FOVEA_ASSIGN(l->cache_, KvCache::create(c));
    FOVEA_ASSIGN(auto rotation, HashRotation::make(head_dim, kBits));
    l->rotation_ = std::make_unique<HashRotation>(std::move(rotation));
    l->ops_ = make_cpu_ops(pool, Numerics::f32);
    OpsLimits limits;
    limits.max_rows = limits.max_decode_rows = 512;
    limits.max_len = o.depth;
    limits.num_heads = kHeads;
    limits.kv_heads = kKvHeads;
    limits.head_dim = head_dim;
    FOVEA_TRY(l->ops_->prepare(limits));
    l->fill(head_dim, o);
    return l;
  }

  void dense() {
    AttentionParams p = attention();
    ops_->paged_decode(p, stream_);
  }
  void select() { ops_->hash_select(selection_params_, stream_); }
  void sparse() {
    AttentionParams p = attention();
    p.selection = &selection_;
    ops_->paged_decode(p, stream_);
  }
  int64_t kv_bytes() const { return len_ * kKvHeads * 2 * head_dim_ * 2; }

 private:
  void fill(int32_t head_dim, const OpsBenchOptions& o) {
    head_dim_ = head_dim;
    len_ = static_cast<int32_t>(o.depth);
    std::mt19937 rng(7);
    table_.resize(o.depth / kBlock);
    std::iota(table_.begin(), table_.end(), 0);
    std::shuffle(table_.begin(), table_.end(), rng);
    const int64_t chunk = 512;
    std::vector<float> k(chunk * kKvHeads * head_dim), v(k.size()), q(chunk * kHeads * head_dim);
    std::normal_distribution<float> normal;
    for (auto* x : {&k, &v, &q}) {
      for (float& f : *x) f = normal(rng);
    }
    std::vector<int64_t> slots(chunk);
    KvWriteParams w;
    w.tokens = static_cast<int32_t>(chunk);
    w.num_heads = kHeads;
    w.q = q.data();
    w.k = k.data();
    w.v = v.data();
    w.slot_mapping = slots.data();
    w.kv = cache_->kv_view(LayerIdx{0});
    codes_ = {reinterpret_cast<uint64_t*>(cache_->plane(*cache_->find_plane("codes"), LayerIdx{0})),
              int64_t{kKvHeads} * kBlock * kBits / 64, int64_t{kBlock} * kBits / 64, rotation_->codec()};
    w.codes = &codes_;
    for (int64_t at = 0; at < o.depth; at += chunk) {
      for (int64_t i = 0; i < chunk; ++i) slots[i] = int64_t{table_[(at + i) / kBlock]} * kBlock + (at + i) % kBlock;
      k[at % k.size()] += 1;  // no two chunks alike
      ops_->kv_write(w, stream_);
    }
    q_.assign(q.begin(), q.begin() + int64_t{kHeads} * head_dim);
    out_.resize(q_.size());
    k_blocks_ = o.budget_tokens / kBlock;
    units_.resize(int64_t{kKvHeads} * k_blocks_);
    counts_.resize(kKvHeads);
    fill_params();
  }
  void fill_params() {
    HashSelectParams& s = selection_params_;
    s.rows = 1;
    s.num_heads = kHeads;
    s.kv_heads = kKvHeads;
    s.block_size = kBlock;
    s.q = q_.data();
    s.row_seq = &zero_;
    s.row_len = &len_;
    s.k = &k_blocks_;
    s.max_len = len_;
    s.codes = codes_;
    s.table = {table_.data(), static_cast<int64_t>(table_.size()), 0};
    s.units = units_.data();
    s.counts = counts_.data();
    s.capacity = k_blocks_;
    selection_.kind = Selection::Kind::list;
    selection_.heads = HeadGroups::per_kv_head;
    selection_.tokens_per_unit = kBlock;
    selection_.rows = 1;
    selection_.groups = kKvHeads;
    selection_.capacity = k_blocks_;
    selection_.units = units_.data();
    selection_.counts = counts_.data();
  }
  AttentionParams attention() {
    AttentionParams p;
    p.q = q_.data();
    p.out = out_.data();
    p.num_heads = kHeads;
    p.num_seqs = 1;
    p.q_indptr = indptr_;
    p.seq_len = &len_;
    p.kv = cache_->kv_view(LayerIdx{0});
    p.kv.table = {table_.data(), static_cast<int64_t>(table_.size()), 0};
    p.scale = 1.0f / 8;
    return p;
  }

  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<HashRotation> rotation_;
  std::unique_ptr<CpuOps> ops_;
  CpuStream stream_;
  CodesView codes_;
  std::vector<int32_t> table_, units_, counts_;
  std::vector<float> q_, out_;
  int32_t head_dim_ = 0, len_ = 0, k_blocks_ = 0, zero_ = 0;
  const int32_t indptr_[2] = {0, 1};
  HashSelectParams selection_params_;
  Selection selection_;
};

}  // namespace

Result<Report> bench_ops(const OpsBenchOptions& o) {
  if (o.depth < 1024 || o.depth % 512) return Status::invalid_argument("--depth " + std::to_string(o.depth) + ": a multiple of 512, at least 1024");
  if (o.budget_tokens < 4 * kBlock || o.budget_tokens > o.depth)
    return Status::invalid_argument("--budget-tokens " + std::to_string(o.budget_tokens) + ": from 64 to the depth");
  ThreadPool pool(o.threads);
  FOVEA_ASSIGN(const auto d64, OneLayer::make(64, o, pool));
  FOVEA_ASSIGN(const auto d128, OneLayer::make(128, o, pool));
  const int64_t sweep_bytes = int64_t{256} << 20;  // far beyond any cache
  const std::unique_ptr<float[]> memory(new float[sweep_bytes / 4]);
  std::fill_n(memory.get(), sweep_bytes / 4, 1.0f);
  const auto sweep = [&] { (void)cpu::read_sweep(memory.get(), sweep_bytes, pool); };
  Report report;
  double bandwidth = 0;
  for (OneLayer* l : {d64.get(), d128.get()}) {
    const std::string d = l == d64.get() ? "64" : "128";
    // The sweep stands between the others: it also drops their data from the caches.
    const std::vector<double> s =
        time_in_turn({sweep, [&] { l->dense(); }, sweep, [&] { l->select(); }, sweep, [&] { l->sparse(); }}, o.rounds);
    bandwidth = static_cast<double>(sweep_bytes) / std::min({s[0], s[2], s[4]}) / 1e9;
    const std::string at = " d " + d + ", " + std::to_string(o.depth) + " tokens";
    report.rate("dense decode attention" + at, static_cast<double>(l->kv_bytes()) / s[1] / 1e9, "GB/s", "read sweep", bandwidth);
    report.add({"dense decode attention" + at, s[1] * 1e3, "ms", "", 0, 0});
    report.add({"hash selection" + at, s[3] * 1e3, "ms", "time of dense attention", s[1] * 1e3, s[3] / s[1]});
    report.add({"sparse attention, " + std::to_string(o.budget_tokens) + " tokens" + at, s[5] * 1e3, "ms", "time of dense attention",
                s[1] * 1e3, s[5] / s[1]});
    report.add({"speedup of selection + sparse attention" + at, s[1] / (s[3] + s[5]), "x", "", 0, 0});
  }
  FOVEA_TRY(bench_index(o, pool, bandwidth, &report));
  FOVEA_TRY(bench_sparse_prefill(o, pool, &report));
  FOVEA_TRY(bench_mla(o, pool, &report));
  return report;
}

}  // namespace fovea
