#include "kernels/cpu/attention/prefill_attention.h"

#include <cstdlib>
#include <new>

#include "base/check.h"
#include "kernels/cpu/attention/prefill_amx.h"
#include "kernels/cpu/attention/prefill_dot.h"
#include "kernels/cpu/attention/prefill_f32.h"
#include "kernels/cpu/cpu_features.h"

namespace fovea::cpu {
namespace {

constexpr size_t kAlign = 64;

void check_params(const AttentionParams& p, const OpsLimits& limits) {
  const KvView& kv = p.kv;
  FOVEA_CHECK(kv.kv_heads > 0 && p.num_heads > 0 && p.num_heads % kv.kv_heads == 0);
  FOVEA_CHECK(kv.head_dim % 16 == 0 && kv.head_dim >= 16 && kv.head_dim <= limits.head_dim);
  FOVEA_CHECK(is_kv_dtype(kv.dtype));
  FOVEA_CHECK(p.q_indptr[p.num_seqs] - p.q_indptr[0] <= limits.max_rows);
  FOVEA_CHECK(!p.gate || (p.num_seqs == 1 && (!p.selection || p.selection->kind == Selection::Kind::all)));
}

}  // namespace

const PrefillEngine& choose_prefill_engine(Numerics numerics) {
  static constexpr PrefillEngine kF32{"f32", kPrefillF32Lanes, &prefill_f32_scratch, &prefill_f32};
  static constexpr PrefillEngine kAmx{"amx", kPrefillAmxLanes, &prefill_amx_scratch, &prefill_amx};
  static constexpr PrefillEngine kDot{"dot", kPrefillDotLanes, &prefill_dot_scratch, &prefill_dot};
  if (numerics != Numerics::bf16) return kF32;
  return cpu_features().amx_bf16 ? kAmx : cpu_features().avx512_bf16 ? kDot : kF32;
}

void PrefillAttention::Free::operator()(float* p) const { std::free(p); }

Status PrefillAttention::prepare(const OpsLimits& limits, int threads, const PrefillEngine& engine) {
  if (limits.head_dim < 16 || limits.head_dim > 256 || limits.head_dim % 16 != 0) {
    return Status::invalid_argument("head_dim is " + std::to_string(limits.head_dim) +
                                    ": attention takes multiples of 16 up to 256");
  }
  if (limits.max_rows < 1) {
    return Status::invalid_argument("max_rows is " + std::to_string(limits.max_rows) + ": at least 1 is needed");
  }
  FOVEA_CHECK(threads >= 1);
  limits_ = limits;
  threads_ = threads;
  engine_ = engine;
  worker_floats_ = (engine.scratch(limits.head_dim) + 15) / 16 * 16;
  const size_t bytes = worker_floats_ * sizeof(float) * static_cast<size_t>(threads);
  scratch_.reset(static_cast<float*>(std::aligned_alloc(kAlign, bytes)));
  if (scratch_ == nullptr) {
    return Status::resource_exhausted("prefill attention needs " + std::to_string(bytes) + " bytes of scratch");
  }
  std::fill_n(scratch_.get(), bytes / sizeof(float), 0.0f);
  tiles_.resize(static_cast<size_t>(limits.max_rows));
  return {};
}

void PrefillAttention::run(const AttentionParams& p, ThreadPool& pool) {
  if (p.num_seqs == 0 || p.q_indptr[p.num_seqs] == p.q_indptr[0]) return;
  check_params(p, limits_);
  FOVEA_CHECK(pool.size() <= threads_);
  const PrefillPlan plan = plan_prefill(p, engine_.lanes, pool.size(), tiles_.data());
  pool.parallel_for(plan.tasks, [&](int64_t task, int worker) {
    const TileJob job = prefill_job(p, plan, tiles_.data(), task);
    engine_.run(job, scratch_.get() + static_cast<size_t>(worker) * worker_floats_);
  });
}

}  // namespace fovea::cpu
