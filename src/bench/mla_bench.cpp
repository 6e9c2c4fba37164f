#include "bench/mla_bench.h"

#include "device/stream.h"
#include "kernels/common/convert.h"
#include "kernels/cpu/ceilings.h"
#include "kernels/cpu/cpu_ops.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace fovea {
namespace {

constexpr int32_t kLatent = 512, kRope = 64, kEntry = kLatent + kRope, kBlock = 16;
constexpr int32_t kChosen = 512;

std::vector<float> random_floats(size_t n, std::mt19937& rng) {
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& f : x) f = normal(rng);
  return x;
}

// A latent cache of one sequence, its pages in random order.
class LatentCache {
 public:
  explicit LatentCache(int64_t depth)
      : rng_(5), depth_(static_cast<int32_t>(depth)), plane_(depth * kEntry), table_(depth / kBlock) {
    for (uint16_t& x : plane_) x = f32_to_bf16(static_cast<float>(static_cast<int32_t>(rng_())) * 0x1.0p-31f);
    std::iota(table_.begin(), table_.end(), 0);
    std::shuffle(table_.begin(), table_.end(), rng_);
    kv_.k = plane_.data();
    kv_.dtype = DType::bf16;
    kv_.block_size = kBlock;
    kv_.kv_heads = 1;
    kv_.head_dim = kEntry;
    kv_.block_stride = kBlock * kEntry;
    kv_.table = {table_.data(), static_cast<int64_t>(table_.size()), 0};
  }
  const KvView& kv() const { return kv_; }
  int32_t depth() const { return depth_; }
  std::mt19937& rng() { return rng_; }

 private:
  std::mt19937 rng_;
  int32_t depth_;
  std::vector<uint16_t> plane_;
  std::vector<int32_t> table_;
  KvView kv_;
};

// The last `rows` rows of the sequence, dense or each through a list of kChosen random tokens.
class Attention {
 public:
  static Result<std::unique_ptr<Attention>> make(LatentCache& cache, int32_t heads, int32_t rows, bool sparse, ThreadPool& pool) {
    std::unique_ptr<Attention> a(new Attention(cache, heads, rows, sparse));
    a->ops_ = make_cpu_ops(pool, Numerics::f32);
    OpsLimits limits;
    limits.max_rows = rows;
    limits.max_len = cache.depth();
    limits.num_heads = heads;
    limits.mla = {kLatent, kRope, 128, 128};
    FOVEA_TRY(a->ops_->prepare(limits));
    return a;
  }
  void run() { ops_->mla_attend(params_, stream_); }
  double flops() const { return 2.0 * pairs() * params_.num_heads * (kEntry + kLatent); }
  double bytes() const { return pairs() * kEntry * 2; }  // of entries, each read once for all heads

 private:
  Attention(LatentCache& cache, int32_t heads, int32_t rows, bool sparse)
      : indptr_{0, rows},
        len_(cache.depth()),
        q_(random_floats(size_t{1} * rows * heads * kEntry, cache.rng())),
        out_(size_t{1} * rows * heads * kLatent) {
    params_.q = q_.data();
    params_.out = out_.data();
    params_.num_heads = heads;
    params_.rows = rows;
    params_.num_seqs = 1;
    params_.q_indptr = indptr_;
    params_.seq_len = &len_;
    params_.kv = &cache.kv();
    params_.latent = kLatent;
    params_.scale = 0.04f;
    if (!sparse) return;
    std::vector<int32_t> all(len_ - rows + 1);
    std::iota(all.begin(), all.end(), 0);
    for (int32_t r = 0; r < rows; ++r) {
      std::sample(all.begin(), all.end(), std::back_inserter(units_), kChosen, cache.rng());
      counts_.push_back(kChosen);
    }
    selection_.kind = Selection::Kind::list;
    selection_.tokens_per_unit = 1;
    selection_.rows = rows;
    selection_.capacity = kChosen;
    selection_.units = units_.data();
    selection_.counts = counts_.data();
    params_.selection = &selection_;
  }
  double pairs() const {
    const double rows = params_.rows;
    return params_.selection != nullptr ? rows * kChosen : rows * (len_ - (rows - 1) / 2);
  }

  const int32_t indptr_[2];
  const int32_t len_;
  std::vector<float> q_, out_;
  std::vector<int32_t> units_, counts_;
  Selection selection_;
  MlaAttendParams params_;
  std::unique_ptr<CpuOps> ops_;
  CpuStream stream_;
};

}  // namespace

Status bench_mla(const OpsBenchOptions& o, const SweepMemory& memory, ThreadPool& pool, Report* report) {
  LatentCache cache(o.depth);
  double burst_flops = 0;
  const auto burst = [&] { burst_flops = cpu::fma_burst(2000000, pool); };
  const auto sweep = [&](int way) { return [&, way] { memory.sweep(way, pool); }; };
  const int rounds = std::max(1, o.rounds / 6);
  for (int32_t heads : {4, 16, 128}) {
    FOVEA_ASSIGN(const auto prefill, Attention::make(cache, heads, std::min(1024, 16384 / heads), true, pool));
    FOVEA_ASSIGN(const auto decode, Attention::make(cache, heads, 1, false, pool));
    static_assert(cpu::kSweepWays == 3);
    const std::vector<double> s =
        time_in_turn({burst, [&] { prefill->run(); }, sweep(0), [&] { decode->run(); }, sweep(1), sweep(2)}, rounds);
    const double peak = burst_flops / s[0] / 1e9;
    const double bandwidth = static_cast<double>(memory.bytes()) / std::min({s[2], s[4], s[5]}) / 1e9;
    const std::string h = ", " + std::to_string(heads) + " heads";
    report->rate("latent attention, prefill of " + std::to_string(kChosen) + " chosen tokens a row" + h,
                 prefill->flops() / s[1] / 1e9, "GFLOP/s", "FMA peak", peak);
    const std::string decoded = "latent attention, dense decode at " + std::to_string(o.depth) + h;
    report->rate(decoded, decode->flops() / s[3] / 1e9, "GFLOP/s", "FMA peak", peak);
    report->rate(decoded, decode->bytes() / s[3] / 1e9, "GB/s", "read sweep", bandwidth);
  }
  return {};
}

}  // namespace fovea
