// The running softmax, in units of log2. Products and sums are spelled as instructions: left to itself the compiler may fuse
// them in one kernel and not in the next.
#pragma once

#include "kernels/cuda/prefill/keys.cuh"
#include "kernels/cuda/prefill/ptx.cuh"

namespace fovea::cuda::prefill {

// How raw dot products become exponents.
struct ScoreScale {
  float factor;    // of a raw score, log2(e) included
  float soft_cap;  // 0: none; else of score * scale
  bool plain;      // exponent = factor * score, factor > 0; else shape_scores() has to see the scores first
  float slack;     // how far a raw score may exceed the reference before the reference follows

  __device__ ScoreScale(const AttentionParams& p, int32_t kv_head) {
    const float scale = p.scale * (p.kv.k_scale != nullptr ? p.kv.k_scale[kv_head] : 1.0f);
    soft_cap = p.soft_cap;
    plain = p.soft_cap == 0.0f && p.alibi_slopes == nullptr && scale > 0.0f;
    raw_ = scale;
    factor = plain ? scale * kLog2e : 1.0f;
    // 2^8 loses nothing in a float32 sum, nor in P as bf16 or f16, and a reference that stays put saves the rescaling.
    slack = 8.0f / factor;
  }

  // Scale, soft cap and ALiBi of one score; in units of log2.
  __device__ float shape(float score, float slope, int32_t distance) const {
    float x = __fmul_rn(score, raw_);
    if (soft_cap > 0.0f) {
      const float y = exp2_fast(__fmul_rn(x, 2.0f * kLog2e / soft_cap));  // tanh(z) = 1 - 2 / (exp(2 z) + 1)
      x = __fmul_rn(soft_cap, __fsub_rn(1.0f, __fdividef(2.0f, __fadd_rn(y, 1.0f))));
    }
    return fmaf(slope, static_cast<float>(distance), __fmul_rn(x, kLog2e));
  }

 private:
  static constexpr float kLog2e = 1.44269504f;
  float raw_;
};

// One row's state, the same in the four threads that share the row but for `sum`, of which each has a part. Weights are
// 2^(factor * (score - reference)); the reference is a score that no later one exceeds by more than the slack, or as exceeds() says.
struct RowSoftmax {
  float reference = -INFINITY;
  float sum = 0.0f;

  // Takes in the greatest score of a tile. Returns what to multiply earlier sums with: exactly 1 where nothing changed,
  // as in a tile of which the row sees nothing.
  __device__ float follow(float greatest, const ScoreScale& scale) {
    if (!(greatest - reference > scale.slack)) return 1.0f;  // also where both are -inf
    const float correction = exp2_fast(__fmul_rn(__fsub_rn(reference, greatest), scale.factor));
    reference = greatest;
    sum = __fmul_rn(sum, correction);
    return correction;
  }
  __device__ void add(float weight) { sum = __fadd_rn(sum, weight); }
  // Of a tile: its sum is to be told from those before.
  __device__ RowSoftmax without_sum() const { return {reference, 0.0f}; }
  // Whether one of some weights that have been added since without_sum() may be too large for P in f16, or there is no reference.
  __device__ bool exceeds() const { return !(sum <= 32768.0f) || reference == -INFINITY; }
  // Subtracted from factor * score.
  __device__ float offset(const ScoreScale& scale) const {
    return reference == -INFINITY ? 0.0f : __fmul_rn(reference, scale.factor);
  }
  // Natural logarithm of the sum of exponentials; `total`: the row's whole sum.
  __device__ float log_sum(float total, const ScoreScale& scale) const {
    return total == 0.0f ? -INFINITY : fmaf(offset(scale), 0.693147181f, logf(total));
  }
};

}  // namespace fovea::cuda::prefill
