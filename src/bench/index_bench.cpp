// The DSA indexer: streaming choice of tokens against the score products alone, and against writing the scores out.
#include "bench/index_bench.h"

#include "device/stream.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/dsa/dsa_topk.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace fovea {
namespace {

constexpr int32_t kDim = 128, kTopk = 2048, kBlock = 16, kRows = 512;
// The GEMM whose rate stands for "products alone": long enough in every direction for its own overhead to vanish.
constexpr int32_t kGemmRows = 512, kGemmK = 1024, kGemmN = 2048;

class IndexProblem {
 public:
  IndexProblem(int32_t heads, int32_t rows, int64_t depth, ThreadPool& pool)
      : heads_(heads), rows_(rows), depth_(depth), pool_(pool) {
    std::mt19937 rng(heads);
    std::normal_distribution<float> normal;
    table_.resize(depth / kBlock);
    std::iota(table_.begin(), table_.end(), 0);
    std::shuffle(table_.begin(), table_.end(), rng);
    keys_.resize(depth * kDim);
    q_.resize(int64_t{rows} * heads * kDim);
    weights_.resize(int64_t{rows} * heads);
    for (auto* v : {&keys_, &q_, &weights_}) {
      for (float& x : *v) x = normal(rng);
    }
    for (int32_t r = 0; r < rows; ++r) len_.push_back(static_cast<int32_t>(depth) - rows + 1 + r);
    seq_.assign(rows, 0);
    indices_.resize(int64_t{rows} * kTopk);
    counts_.resize(rows);
  }

  Status prepare() {
    OpsLimits limits;
    limits.max_rows = rows_;
    limits.index_heads = heads_;
    limits.index_dim = kDim;
    limits.index_topk = kTopk;
    return topk_.prepare(limits, pool_.size());
  }
  void stream() { topk_.run(params(), pool_); }
  void materialise() {
    logits_.resize(int64_t{rows_} * depth_);
    IndexTopkParams p = params();
    p.logits = logits_.data();
    p.logits_floats = static_cast<int64_t>(logits_.size());
    topk_.run(p, pool_);
  }
  double flops() const { return 2.0 * kDim * heads_ * std::accumulate(len_.begin(), len_.end(), 0.0); }
  double key_bytes() const { return static_cast<double>(depth_) * kDim * sizeof(float); }
  double scratch_mb() const { return static_cast<double>(topk_.scratch_bytes()) / 1e6; }
  double logits_mb() const { return static_cast<double>(rows_ * depth_ * sizeof(float)) / 1e6; }

 private:
  IndexTopkParams params() {
    IndexTopkParams p;
    p.rows = rows_;
    p.heads = heads_;
    p.q = q_.data();
    p.weights = weights_.data();
    p.row_seq = seq_.data();
    p.row_len = len_.data();
    p.topk = kTopk;
    p.max_len = depth_;
    p.keys = {IndexPrecision::exact, keys_.data(), nullptr, kBlock, kDim, table_.data(), static_cast<int64_t>(table_.size())};
    p.out = {IndexSpace::position, rows_, kTopk, indices_.data(), counts_.data()};
    return p;
  }

  const int32_t heads_, rows_;
  const int64_t depth_;
  ThreadPool& pool_;
  cpu::IndexTopk topk_;
  std::vector<int32_t> table_, len_, seq_, indices_, counts_;
  std::vector<float> keys_, q_, weights_, logits_;
};

// A float32 product through linear(), to know its rate.
class Gemm {
 public:
  explicit Gemm(ThreadPool& pool)
      : ops_(make_cpu_ops(pool, Numerics::f32)), x_(kGemmRows * kGemmK, 0.5f), out_(kGemmRows * kGemmN) {
    w_.assign(int64_t{kGemmN} * kGemmK, 0.25f);
  }
  Status prepare() {
    OpsLimits limits;
    limits.max_rows = kGemmRows;
    limits.max_k = kGemmK;
    limits.max_n = kGemmN;
    FOVEA_TRY(ops_->prepare(limits));
    return ops_->add_linear_shape(kGemmK, kGemmN, WeightType::f32);
  }
  // About as many operations as `flops`: a short product would meet quiet moments that a long choice never has to itself.
  static double repeats(double flops) { return std::max(1.0, std::round(flops / Gemm::flops())); }
  void run(double flops) {
    for (double r = repeats(flops); r > 0; --r) run_once();
  }
  void run_once() {
    const LinearWeight w{weight_view(w_.data(), DType::f32, kGemmN, kGemmK), nullptr, out_.data()};
    ops_->linear({x_.data(), kGemmRows, kGemmK, &w, 1}, stream_);
  }
  static double flops() { return 2.0 * kGemmRows * kGemmK * kGemmN; }

 private:
  std::unique_ptr<CpuOps> ops_;
  CpuStream stream_;
  std::vector<float> x_, w_, out_;
};

void report_prefill(IndexProblem& problem, Gemm& gemm, int32_t heads, int64_t depth, int rounds, Report* report) {
  const std::vector<double> s =
      time_in_turn({[&] { gemm.run(problem.flops()); }, [&] { problem.stream(); }, [&] { problem.materialise(); }}, rounds);
  const std::string at =
      ", " + std::to_string(heads) + " heads, " + std::to_string(kRows) + " rows, " + std::to_string(depth) + " tokens";
  const double products_ms = s[0] * problem.flops() / (Gemm::repeats(problem.flops()) * Gemm::flops()) * 1e3;
  report->add(
      {"index top-k, streaming" + at, s[1] * 1e3, "ms", "products at the f32 GEMM rate", products_ms, s[1] * 1e3 / products_ms});
  report->add({"index top-k, logits written" + at, s[2] * 1e3, "ms", "time of streaming", s[1] * 1e3, s[2] / s[1]});
  report->add({"index top-k, scratch of streaming" + at, problem.scratch_mb(), "MB", "logits matrix", problem.logits_mb(),
               problem.scratch_mb() / problem.logits_mb()});
}

}  // namespace

Status bench_index(const OpsBenchOptions& o, ThreadPool& pool, double bandwidth_gb_s, Report* report) {
  if (o.depth <= kTopk) return {};  // every key is chosen: nothing to time
  Gemm gemm(pool);
  FOVEA_TRY(gemm.prepare());
  for (int32_t heads : {4, 64}) {
    const int rounds = std::max(1, o.rounds * 4 / (heads * 5));  // 48 and 3 of 60
    {
      IndexProblem prefill(heads, static_cast<int32_t>(std::min<int64_t>(kRows, o.depth)), o.depth, pool);
      FOVEA_TRY(prefill.prepare());
      report_prefill(prefill, gemm, heads, o.depth, std::min(rounds, 10), report);
    }
    IndexProblem decode(heads, 1, o.depth, pool);
    FOVEA_TRY(decode.prepare());
    const std::vector<double> s = time_in_turn({[&] { gemm.run_once(); }, [&] { decode.stream(); }}, std::max(rounds, 10));
    report->rate("index top-k of one row, " + std::to_string(heads) + " heads, " + std::to_string(o.depth) + " tokens",
                 decode.key_bytes() / s[1] / 1e9, "GB/s", "read sweep", bandwidth_gb_s);
    report->add({"index top-k of one row, " + std::to_string(heads) + " heads", s[1] * 1e3, "ms", "products at the f32 GEMM rate",
                 decode.flops() / (Gemm::flops() / s[0]) * 1e3, s[1] * (Gemm::flops() / s[0]) / decode.flops()});
  }
  return {};
}

}  // namespace fovea
