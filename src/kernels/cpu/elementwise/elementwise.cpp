#include "kernels/cpu/elementwise/elementwise.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/quant/unpack.h"

#include "kernels/cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise/elementwise.cpp"
#define HWY_WANT_AVX3_DL
#include <hwy/foreach_target.h>
//
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>
#include "kernels/cpu/elementwise/elementwise_inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea::cpu::HWY_NAMESPACE {

void embed_rows(const EmbedParams& p, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const int64_t id = p.ids[t] >= 0 ? p.ids[t] : p.previous[-1 - p.ids[t]];
    unpack_f32(p.table, id, 0, p.hidden, p.out + t * p.hidden);
  }
}

// sum[i] = x[i] + add[i]; sum may be x.
HWY_INLINE void add_row(const float* x, const float* add, float* sum, int32_t dim) {
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= dim; i += lanes) hn::StoreU(hn::Add(hn::LoadU(d, x + i), hn::LoadU(d, add + i)), d, sum + i);
  for (; i < dim; ++i) sum[i] = x[i] + add[i];
}

void rms_norm_rows(const RmsNormParams& p, int64_t begin, int64_t end) {
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t r = begin; r < end; ++r) {
    const int64_t from = (p.row_index ? p.row_index[r] : r) * static_cast<int64_t>(p.dim);
    float* out = p.out ? p.out + r * p.dim : nullptr;
    float* x = p.x + from;
    if (p.add) {
      float* sum = p.row_index ? out : p.sum ? p.sum + from : x;  // a gathered row's sum is kept nowhere else
      add_row(x, p.add + from, sum, p.dim);
      x = sum;
    }
    if (!out) continue;
    const float inverse = inverse_rms(x, p.dim, p.eps);
    const FloatVec scale = hn::Set(d, inverse);
    int64_t i = 0;
    for (; i + lanes <= p.dim; i += lanes) {
      hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(d, x + i), scale), hn::LoadU(d, p.weight + i)), d, out + i);
    }
    for (; i < p.dim; ++i) out[i] = x[i] * inverse * p.weight[i];
  }
}

// gate / (1 + exp(-gate)) * up. exp is clamped where it would overflow: the quotient is below 1e-34 there.
HWY_INLINE FloatVec silu_times(FloatTag d, FloatVec gate, FloatVec up) {
  const FloatVec e = hn::Exp(d, hn::Min(hn::Neg(gate), hn::Set(d, 88.0f)));
  return hn::Mul(hn::Div(gate, hn::Add(hn::Set(d, 1.0f), e)), up);
}

// Elements, not rows: the last few go through the same vector code, so where a range is cut changes nothing.
void silu_mul_range(const SiluMulParams& p, int64_t begin, int64_t end) {
  const FloatTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = begin;
  for (; i + lanes <= end; i += lanes) {
    hn::StoreU(silu_times(d, hn::LoadU(d, p.gate + i), hn::LoadU(d, p.up + i)), d, p.out + i);
  }
  if (i == end) return;
  HWY_ALIGN float gate[16] = {};
  HWY_ALIGN float up[16] = {};
  for (int64_t j = i; j < end; ++j) {
    gate[j - i] = p.gate[j];
    up[j - i] = p.up[j];
  }
  hn::Store(silu_times(d, hn::Load(d, gate), hn::Load(d, up)), d, gate);
  for (int64_t j = i; j < end; ++j) p.out[j] = gate[j - i];
}

}  // namespace fovea::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fovea::cpu {
namespace {

HWY_EXPORT(embed_rows);
HWY_EXPORT(rms_norm_rows);
HWY_EXPORT(silu_mul_range);

// Below this many floats (a few microseconds) the barrier of a parallel region would cost as much as the
// work.
constexpr int64_t kParallelFloats = 32 * 1024;
constexpr int64_t kFloatsPerTask = 8 * 1024;

// fn(begin, end) over [0, count) items of item_floats each.
template <typename Fn>
void for_ranges(ThreadPool& pool, int64_t count, int64_t item_floats, const Fn& fn) {
  if (count <= 0) return;
  if (pool.size() == 1 || count * item_floats < kParallelFloats) return fn(int64_t{0}, count);
  const int64_t step = std::max<int64_t>(1, kFloatsPerTask / std::max<int64_t>(1, item_floats));
  pool.parallel_for((count + step - 1) / step, [&](int64_t task, int) { fn(task * step, std::min(count, (task + 1) * step)); });
}

}  // namespace

void embed(const EmbedParams& p, ThreadPool& pool) {
  for_ranges(pool, p.tokens, p.hidden, [&](int64_t b, int64_t e) { HWY_DYNAMIC_DISPATCH(embed_rows)(p, b, e); });
}

void rms_norm(const RmsNormParams& p, ThreadPool& pool) {
  for_ranges(pool, p.rows, p.dim, [&](int64_t b, int64_t e) { HWY_DYNAMIC_DISPATCH(rms_norm_rows)(p, b, e); });
}

void silu_mul(const SiluMulParams& p, ThreadPool& pool) {
  const int64_t count = static_cast<int64_t>(p.rows) * p.dim;
  for_ranges(pool, count, 1, [&](int64_t b, int64_t e) { HWY_DYNAMIC_DISPATCH(silu_mul_range)(p, b, e); });
}

void rope_angles(const RopeAnglesParams& p) {
  for (int64_t t = 0; t < p.tokens; ++t) {
    for (int32_t i = 0; i < p.half; ++i) {
      const float angle = static_cast<float>(p.positions[t]) * p.inv_freq[i];
      p.cos[t * p.half + i] = std::cos(angle) * p.scaling;
      p.sin[t * p.half + i] = std::sin(angle) * p.scaling;
    }
  }
}

}  // namespace fovea::cpu
#endif  // HWY_ONCE
