#include "base/thread_pool.h"
#include "bench/bench.h"
#include "bench/cpu_layer.h"
#include "bench/index_bench.h"
#include "bench/mla_bench.h"
#include "bench/sparse_prefill_bench.h"
#include "bench/sweep_memory.h"
#include "kernels/cpu/ceilings.h"

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

namespace fovea {
namespace {

constexpr int32_t kBlock = CpuLayer::kPage, kBits = 128;  // of symmetric codes; asymmetric ones have the default, a bit a dimension

// One row of decode: dense attention, the choice of blocks by codes, attention over them.
class OneLayer {
 public:
  static Result<std::unique_ptr<OneLayer>> make(int32_t head_dim, const OpsBenchOptions& o, ThreadPool& pool) {
    const CpuLayer::Shape shape = {.head_dim = head_dim, .tokens = o.depth, .hash_bits = kBits, .asymmetric_bits = head_dim};
    FOVEA_ASSIGN(auto layer, CpuLayer::make(shape, preferred_numerics(), pool));
    return std::unique_ptr<OneLayer>(new OneLayer(std::move(layer), head_dim, o.budget_tokens / kBlock));
  }

  void dense() { layer_->ops().paged_decode(layer_->attention(), layer_->stream()); }
  void select(bool asymmetric) {
    HashSelectParams p = selection_params_;
    p.codes = layer_->codes(asymmetric);
    layer_->ops().hash_select(p, layer_->stream());
  }
  // The pages of asymmetric codes that select() reads, and nothing else.
  void read_codes(int way, ThreadPool& pool) const {
    (void)cpu::read_pages(pages_.data(), std::ssize(pages_), page_bytes_, way, pool);
  }
  void sparse() {
    AttentionParams p = layer_->attention();
    p.selection = &selection_;
    layer_->ops().paged_decode(p, layer_->stream());
  }
  double code_bytes(int32_t bits) const { return static_cast<double>(*layer_->len()) * CpuLayer::kKvHeads * bits / 8; }
  int64_t kv_bytes() const { return int64_t{*layer_->len()} * CpuLayer::kKvHeads * 2 * head_dim_ * 2; }

 private:
  OneLayer(std::unique_ptr<CpuLayer> layer, int32_t head_dim, int32_t blocks)
      : layer_(std::move(layer)),
        head_dim_(head_dim),
        k_blocks_(blocks),
        units_(CpuLayer::kKvHeads * blocks),
        counts_(CpuLayer::kKvHeads) {
    HashSelectParams& s = selection_params_;
    s.rows = 1;
    s.num_heads = CpuLayer::kHeads;
    s.kv_heads = CpuLayer::kKvHeads;
    s.block_size = kBlock;
    s.q = layer_->q();
    s.row_seq = &zero_;
    s.row_len = layer_->len();
    s.k = &k_blocks_;
    s.max_len = *layer_->len();
    s.table = layer_->kv().table;
    s.units = units_.data();
    s.counts = counts_.data();
    s.capacity = k_blocks_;
    selection_ = {.kind = Selection::Kind::list,
                  .heads = HeadGroups::per_kv_head,
                  .tokens_per_unit = kBlock,
                  .rows = 1,
                  .groups = CpuLayer::kKvHeads,
                  .capacity = k_blocks_,
                  .units = units_.data(),
                  .counts = counts_.data()};
    const CodesView codes = layer_->codes(true);
    page_bytes_ = CpuLayer::kKvHeads * codes.head_stride * int64_t{sizeof(uint64_t)};
    for (int64_t i = 0; i < *layer_->len() / kBlock; ++i)
      pages_.push_back(reinterpret_cast<const std::byte*>(codes.codes + s.table.slots[i] * codes.block_stride));
  }

  const std::unique_ptr<CpuLayer> layer_;
  const int32_t head_dim_, k_blocks_, zero_ = 0;
  std::vector<int32_t> units_, counts_;
  HashSelectParams selection_params_;
  Selection selection_;
  std::vector<const std::byte*> pages_;  // of asymmetric codes, in the order of tokens
  int64_t page_bytes_ = 0;
};

}  // namespace

Result<Report> bench_ops(const OpsBenchOptions& o) {
  if (o.depth < 1024 || o.depth % 512)
    return Status::invalid_argument("--depth " + std::to_string(o.depth) + ": a multiple of 512, at least 1024");
  if (o.budget_tokens < 4 * kBlock || o.budget_tokens > o.depth)
    return Status::invalid_argument("--budget-tokens " + std::to_string(o.budget_tokens) + ": from 64 to the depth");
  ThreadPool pool(o.threads);
  FOVEA_ASSIGN(const auto d64, OneLayer::make(64, o, pool));
  FOVEA_ASSIGN(const auto d128, OneLayer::make(128, o, pool));
  const SweepMemory memory;
  const auto sweep = [&](int way) { return [&, way] { memory.sweep(way, pool); }; };
  Report report;
  double bandwidth = 0;
  for (OneLayer* l : {d64.get(), d128.get()}) {
    const int32_t head_dim = l == d64.get() ? 64 : 128;
    const std::string d = std::to_string(head_dim);
    const auto alone = [&](int way) { return [&, way] { l->read_codes(way, pool); }; };
    // The sweep stands between the others: it also drops their data from the caches.
    static_assert(cpu::kSweepWays == 3);
    const std::vector<double> s =
        time_in_turn({sweep(0), [&] { l->dense(); }, sweep(1), [&] { l->select(false); }, sweep(2), [&] { l->sparse(); }, sweep(0),
                      [&] { l->select(true); }, sweep(1), alone(0), sweep(2), alone(1), sweep(0), alone(2)},
                     o.rounds);
    bandwidth = static_cast<double>(memory.bytes()) / std::min({s[0], s[2], s[4], s[6], s[8], s[10], s[12]}) / 1e9;
    const std::string at = " d " + d + ", " + std::to_string(o.depth) + " tokens";
    report.rate("dense decode attention" + at, static_cast<double>(l->kv_bytes()) / s[1] / 1e9, "GB/s", "read sweep", bandwidth);
    report.add({"dense decode attention" + at, s[1] * 1e3, "ms", "", 0, 0});
    report.add({"hash selection" + at, s[3] * 1e3, "ms", "time of dense attention", s[1] * 1e3, s[3] / s[1]});
    const auto bits = [](int32_t n) { return ", " + std::to_string(n) + " bits"; };
    for (const auto& [name, size, time] :
         {std::tuple("symmetric" + bits(kBits), kBits, s[3]), std::tuple("asymmetric" + bits(head_dim), head_dim, s[7])})
      report.rate("codes selected by, " + name + at, l->code_bytes(size) / time / 1e9, "GB/s", "read sweep", bandwidth);
    report.rate("pages of codes read alone, asymmetric" + bits(head_dim) + at,
                l->code_bytes(head_dim) / std::min({s[9], s[11], s[13]}) / 1e9, "GB/s", "read sweep", bandwidth);
    report.add({"sparse attention, " + std::to_string(o.budget_tokens) + " tokens" + at, s[5] * 1e3, "ms",
                "time of dense attention", s[1] * 1e3, s[5] / s[1]});
    report.add({"speedup of selection + sparse attention" + at, s[1] / (s[3] + s[5]), "x", "", 0, 0});
  }
  FOVEA_TRY(bench_index(o, pool, bandwidth, &report));
  FOVEA_TRY(bench_sparse_prefill(o, pool, &report));
  FOVEA_TRY(bench_mla(o, memory, pool, &report));
  return report;
}

}  // namespace fovea
