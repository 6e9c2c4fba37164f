#include "base/thread_pool.h"
#include "bench/bench.h"
#include "bench/cpu_layer.h"
#include "device/stream.h"
#include "kernels/common/convert.h"
#include "kernels/cpu/ceilings.h"
#include "kernels/cpu/cpu_features.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/linear/linear_library.h"

#include <algorithm>
#include <memory>
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
    FOVEA_TRY(ops->add_linear_shape(s.k, s.n, WeightType::bf16));
    FOVEA_ASSIGN(cpu::LibraryGemm best,
                 cpu::LibraryGemm::create(numerics == Numerics::bf16 ? DType::bf16 : DType::f32, o.rows, s.n, s.k, pool.size()));
    const LinearWeight weight{weight_view(w.data(), DType::bf16, s.n, s.k), nullptr, out.data()};
    CpuStream stream;
    const auto t = time_in_turn({[&] {
                                   ops->linear({x.data(), o.rows, s.k, &weight, 1}, stream);
                                 },
                                 [&] { best.run(pool); }},
                                o.rounds);
    report->rate("linear " + std::to_string(s.n) + "x" + std::to_string(s.k) + ", " + std::to_string(o.rows) + " rows",
                 best.flops() / t[0] / 1e9, "GFLOP/s", "library, packed", best.flops() / t[1] / 1e9);
  }
  return {};
}

struct Ceiling {
  const char* name;
  double gflops;
};

// Of prefill attention: what multiplies in this mode, AMX by the measured rate of a bf16 product.
Result<Ceiling> ceiling_of(const PrefillBenchOptions& o, Numerics numerics, ThreadPool& pool) {
  const cpu::CpuFeatures& features = cpu::cpu_features();
  if (numerics == Numerics::bf16 && features.amx_bf16) {
    FOVEA_ASSIGN(cpu::LibraryGemm gemm, cpu::LibraryGemm::create(DType::bf16, 512, 4096, 2048, pool.size()));
    return Ceiling{"bf16 GEMM", gemm.flops() / time_in_turn({[&] { gemm.run(pool); }}, o.rounds)[0] / 1e9};
  }
  const bool dots = numerics == Numerics::bf16 && features.avx512_bf16;
  double flops = 0;
  const auto burst = [&] { flops = dots ? cpu::dot_burst(2000000, pool) : cpu::fma_burst(2000000, pool); };
  const double s = time_in_turn({burst}, o.rounds)[0];
  return Ceiling{dots ? "bf16 dot-product peak" : "FMA peak", flops / s / 1e9};
}

Status bench_attention(const PrefillBenchOptions& o, Numerics numerics, int32_t d, int64_t depth, ThreadPool& pool,
                       Report* report) {
  if (depth < CpuLayer::kRowsMax || depth % CpuLayer::kRowsMax)
    return Status::invalid_argument("--depths " + std::to_string(depth) + ": a multiple of " + std::to_string(CpuLayer::kRowsMax));
  FOVEA_ASSIGN(const auto layer, CpuLayer::make({.head_dim = d, .tokens = depth, .rows = o.rows}, numerics, pool));
  const AttentionParams p = layer->attention();
  const double pairs = static_cast<double>(o.rows) * (static_cast<double>(depth) - o.rows / 2.0);
  const double flops = 4.0 * pairs * CpuLayer::kHeads * d;
  const double s = time_in_turn({[&] { layer->ops().paged_prefill(p, layer->stream()); }}, depth > 10000 ? 2 : 3)[0];
  FOVEA_ASSIGN(const Ceiling ceiling, ceiling_of(o, numerics, pool));
  report->rate("prefill attention d " + std::to_string(d) + ", " + std::to_string(o.rows) + " rows at " + std::to_string(depth),
               flops / s / 1e9, "GFLOP/s", ceiling.name, ceiling.gflops);
  return {};
}

}  // namespace

Result<Report> bench_prefill(const PrefillBenchOptions& o) {
  ThreadPool pool(o.threads);
  const Numerics numerics = numerics_of(o.numerics);
  Report report;
  report.note(std::string("numerics ") + (numerics == Numerics::bf16 ? "bf16" : "f32") +
              (cpu::cpu_features().amx_bf16 ? ", AMX" : ", no AMX"));
  FOVEA_TRY(bench_linear(o, numerics, pool, &report));
  for (int32_t d : {64, 128}) {
    for (int64_t depth : o.depths) FOVEA_TRY(bench_attention(o, numerics, d, depth, pool, &report));
  }
  return report;
}

}  // namespace fovea
