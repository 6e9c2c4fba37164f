#include "base/thread_pool.h"
#include "bench/bench.h"
#include "device/stream.h"
#include "kernels/cpu/ceilings.h"
#include "kernels/cpu/cpu_features.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/linear/linear_library.h"
#include "kernels/common/convert.h"
#include "kv/kv_cache.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace fovea {
namespace {

Numerics numerics_of(NumericsChoice choice) {
  if (choice == NumericsChoice::automatic) return preferred_numerics();
  return choice == NumericsChoice::bf16 ? Numerics::bf16 : Numerics::f32;
}

struct Shape {
  int32_t n, k;
};

// Linear layers with bf16 weights in place against packed library products of the mode's own element type.
Status bench_linear(const PrefillBenchOptions& o, Numerics numerics, ThreadPool& pool, Report* report) {
  for (const Shape s : {Shape{16384, 2048}, Shape{2048, 8192}, Shape{3072, 2048}}) {
    std::vector<uint16_t> w(int64_t{s.n} * s.k);
    std::mt19937 rng(1);
    for (uint16_t& x : w) x = f32_to_bf16(static_cast<float>(static_cast<int32_t>(rng())) * 0x1.0p-36f);
    std::vector<float> x(int64_t{o.rows} * s.k), out(int64_t{o.rows} * s.n);
    for (float& f : x) f = static_cast<float>(static_cast<int32_t>(rng())) * 0x1.0p-31f;
    const auto ops = make_cpu_ops(pool, numerics);
    OpsLimits limits;
    limits.max_rows = o.rows;
    limits.max_k = s.k;
    limits.max_n = s.n;
    FOVEA_TRY(ops->prepare(limits));
    FOVEA_TRY(ops->add_linear_shape(s.k, s.n, DType::bf16));
    FOVEA_ASSIGN(cpu::LibraryGemm best, cpu::LibraryGemm::create(numerics == Numerics::bf16 ? DType::bf16 : DType::f32, o.rows, s.n, s.k, pool.size()));
    const LinearWeight weight{weight_view(w.data(), DType::bf16, s.n, s.k), nullptr, out.data()};
    CpuStream stream;
    const auto t = time_in_turn({[&] { ops->linear({x.data(), o.rows, s.k, &weight, 1}, stream); }, [&] { best.run(pool); }}, o.rounds);
    report->rate("linear " + std::to_string(s.n) + "x" + std::to_string(s.k) + ", " + std::to_string(o.rows) + " rows", best.flops() / t[0] / 1e9, "GFLOP/s",
                 "library, packed", best.flops() / t[1] / 1e9);
  }
  return {};
}

// The ceiling of prefill attention: the FMA peak, or where AMX multiplies the measured bf16 GEMM rate.
Result<double> ceiling_gflops(const PrefillBenchOptions& o, Numerics numerics, ThreadPool& pool) {
  if (numerics == Numerics::bf16 && cpu::cpu_features().amx_bf16) {
    FOVEA_ASSIGN(cpu::LibraryGemm gemm, cpu::LibraryGemm::create(DType::bf16, 512, 4096, 2048, pool.size()));
    return gemm.flops() / time_in_turn({[&] { gemm.run(pool); }}, o.rounds)[0] / 1e9;
  }
  double flops = 0;
  const double s = time_in_turn({[&] { flops = cpu::fma_burst(2000000, pool); }}, o.rounds)[0];
  return flops / s / 1e9;
}

Status bench_attention(const PrefillBenchOptions& o, Numerics numerics, int32_t d, int64_t depth, ThreadPool& pool, Report* report) {
  constexpr int32_t kHeads = 32, kKvHeads = 8, kBlock = 16;
  if (depth < o.rows || depth % o.rows) return Status::invalid_argument("--depths " + std::to_string(depth) + ": a multiple of " + std::to_string(o.rows));
  KvCacheConfig c;
  c.num_layers = 1;
  c.block_size = kBlock;
  c.num_blocks = static_cast<int32_t>(depth / kBlock);
  c.kv_heads = kKvHeads;
  c.head_dim = d;
  FOVEA_ASSIGN(const auto cache, KvCache::create(c));
  const auto ops = make_cpu_ops(pool, numerics);
  OpsLimits limits;
  limits.max_rows = o.rows;
  limits.max_len = depth;
  limits.num_heads = kHeads;
  limits.kv_heads = kKvHeads;
  limits.head_dim = d;
  FOVEA_TRY(ops->prepare(limits));
  std::mt19937 rng(3);
  std::normal_distribution<float> normal;
  std::vector<float> q(int64_t{o.rows} * kHeads * d), k(int64_t{o.rows} * kKvHeads * d), v(k.size()), out(q.size());
  for (auto* x : {&q, &k, &v}) {
    for (float& f : *x) f = normal(rng);
  }
  std::vector<int32_t> table(depth / kBlock);
  std::iota(table.begin(), table.end(), 0);
  std::shuffle(table.begin(), table.end(), rng);
  std::vector<int64_t> slots(o.rows);
  CpuStream stream;
  KvWriteParams w;
  w.tokens = o.rows;
  w.num_heads = kHeads;
  w.q = q.data();
  w.k = k.data();
  w.v = v.data();
  w.slot_mapping = slots.data();
  w.kv = cache->kv_view(LayerIdx{0});
  for (int64_t at = 0; at < depth; at += o.rows) {
    for (int64_t i = 0; i < o.rows; ++i) slots[i] = int64_t{table[(at + i) / kBlock]} * kBlock + (at + i) % kBlock;
    ops->kv_write(w, stream);
  }
  const int32_t indptr[] = {0, o.rows}, len = static_cast<int32_t>(depth);
  AttentionParams p;
  p.q = q.data();
  p.out = out.data();
  p.num_heads = kHeads;
  p.num_seqs = 1;
  p.q_indptr = indptr;
  p.seq_len = &len;
  p.kv = cache->kv_view(LayerIdx{0});
  p.kv.table = {table.data(), static_cast<int64_t>(table.size()), 0};
  p.scale = 1.0f / std::sqrt(static_cast<float>(d));
  const double pairs = static_cast<double>(o.rows) * (static_cast<double>(depth) - o.rows / 2.0);
  const double flops = 4.0 * pairs * kHeads * d;
  const double s = time_in_turn({[&] { ops->paged_prefill(p, stream); }}, depth > 10000 ? 2 : 3)[0];
  FOVEA_ASSIGN(const double ceiling, ceiling_gflops(o, numerics, pool));
  report->rate("prefill attention d " + std::to_string(d) + ", " + std::to_string(o.rows) + " rows at " + std::to_string(depth), flops / s / 1e9, "GFLOP/s",
               numerics == Numerics::bf16 && cpu::cpu_features().amx_bf16 ? "bf16 GEMM" : "FMA peak", ceiling);
  return {};
}

}  // namespace

Result<Report> bench_prefill(const PrefillBenchOptions& o) {
  ThreadPool pool(o.threads);
  const Numerics numerics = numerics_of(o.numerics);
  Report report;
  report.note(std::string("numerics ") + (numerics == Numerics::bf16 ? "bf16" : "f32") + (cpu::cpu_features().amx_bf16 ? ", AMX" : ", no AMX"));
  FOVEA_TRY(bench_linear(o, numerics, pool, &report));
  for (int32_t d : {64, 128}) {
    for (int64_t depth : o.depths) FOVEA_TRY(bench_attention(o, numerics, d, depth, pool, &report));
  }
  return report;
}

}  // namespace fovea
