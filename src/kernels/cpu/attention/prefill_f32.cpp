// Lanes of a vector are query rows: S^T = K Q^T and O^T += V^T P^T both broadcast one element of K or V and
// multiply it with rows side by side. So a row maximum is a vertical maximum, K and V need no transpose, and
// a lane's arithmetic cannot depend on its neighbours.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)  // vectors stand in arrays

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention/prefill_f32.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <numbers>

#include "base/check.h"
#include "kernels/common/convert.h"
#include "kernels/cpu/attention/prefill_f32.h"
#include "kernels/cpu/attention/prefill_scratch.h"
#include "kernels/cpu/attention/prefill_vector_inl.h"

#ifndef FOVEA_PREFILL_F32_SHARED
#define FOVEA_PREFILL_F32_SHARED
namespace fovea::cpu {

constexpr int32_t kTileKeys = 128;
// Elements between packed keys: constant, so that every broadcast has an immediate offset; an odd number of
// cache lines, so that the rows spread over the sets of L1.
constexpr int32_t kKeyStride = 272;
constexpr float kNoMax = -3e38f;  // running maximum of a row that has seen no key: finite, so that differences are not NaN

// Scratch of one worker. Lanes are stored panel by panel.
struct F32Scratch {
  float* q;      // [panels, d, panel] scaled
  float* o;      // [panels, d, panel]
  float* k;      // [kTileKeys, kKeyStride]
  float* v;      // [kTileKeys, kKeyStride]
  float* s;      // [kTileKeys, panel] scores, then weights
  float* m;      // [lanes] running maximum, in units of log2
  float* l;      // [lanes] running sum
  float* k_pos;  // [kTileKeys]
  LaneView lanes;
};

constexpr int32_t kLanes = kPrefillF32Lanes.most;

inline F32Scratch carve(ScratchCarver& c, int32_t dim) {
  F32Scratch w{};
  w.q = c.floats(static_cast<int64_t>(kLanes) * dim);
  w.o = c.floats(static_cast<int64_t>(kLanes) * dim);
  w.k = c.floats(kTileKeys * kKeyStride);
  w.v = c.floats(kTileKeys * kKeyStride);
  w.s = c.floats(kTileKeys * kLanes);  // no panel is wider
  w.m = c.floats(kLanes);
  w.l = c.floats(kLanes);
  w.k_pos = c.floats(kTileKeys);
  w.lanes = {c.longs(kLanes), c.longs(kLanes), c.floats(kLanes), c.floats(kLanes)};
  return w;
}

}  // namespace fovea::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace fovea::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

static_assert(kLanes % kPanel == 0 && kTileKeys % kKeys == 0 && 16 % kKeys == 0);

HWY_INLINE V tanh(V x) {
  const D d;
  const V one = hn::Set(d, 1.0f);
  const V e = exp2_nonpositive(hn::Mul(hn::Abs(x), hn::Set(d, -2.0f * std::numbers::log2e_v<float>)));
  return hn::CopySign(hn::Div(hn::Sub(one, e), hn::Add(one, e)), x);
}

// ---- K and V of a tile, to float32 rows ----------------------------------------------------------------------------

template <typename T>
void pack_rows(const T* src, int32_t n, const KvView& kv, float* dst) {
  for (int32_t j = 0; j < n; ++j, src += kv.tokens_apart(), dst += kKeyStride) widen_row(src, kv.head_dim, dst);
}

// classic: [d / x, bs, x] for K; x = 1 with [d, bs] for V.
template <typename T>
void pack_classic(const T* src, const KeyRun& run, const KvView& kv, int32_t x, float* dst) {
  src += static_cast<int64_t>(run.offset) * x;
  const int64_t step = static_cast<int64_t>(kv.block_size) * x;
  for (int32_t j = 0; j < run.n; ++j, src += x, dst += kKeyStride) widen_classic(src, kv.head_dim, x, step, dst);
}

template <typename T>
void pack_run(const TileJob& job, const KeyRun& run, int32_t j, const F32Scratch& w) {
  const KvView& kv = job.params->kv;
  const T* k = static_cast<const T*>(kv.k) + run.base;
  const T* v = static_cast<const T*>(kv.v) + run.base;
  float* to_k = w.k + j * kKeyStride;
  float* to_v = w.v + j * kKeyStride;
  if (kv.layout == KvLayout::hnd) {
    const int64_t skip = run.offset * kv.tokens_apart();
    pack_rows(k + skip, run.n, kv, to_k);
    pack_rows(v + skip, run.n, kv, to_v);
  } else {
    pack_classic(k, run, kv, static_cast<int32_t>(16 / sizeof(T)), to_k);
    pack_classic(v, run, kv, 1, to_v);
  }
}

// Packs keys [begin, end) of the list into the tile that starts at key `base`. Nothing else is read.
void pack_tile(const TileJob& job, int64_t base, int64_t begin, int64_t end, const F32Scratch& w) {
  const KvView& kv = job.params->kv;
  KeyRuns runs(job.keys, kv, job.seq, job.kv_head, begin, end);
  for (KeyRun run; runs.next(&run);) {
    const auto j = static_cast<int32_t>(run.index - base);
    with_element(kv.dtype, [&](auto* t) { pack_run<std::remove_pointer_t<decltype(t)>>(job, run, j, w); });
    for (int32_t i = 0; i < run.n; ++i) w.k_pos[j + i] = static_cast<float>(run.pos + i);
  }
}

// Is there a V that some row must not multiply and that would show, were its weight 0?
bool has_nonfinite(const float* v, int64_t begin, int64_t end, int32_t dim) {
  for (int64_t j = begin; j < end; ++j) {
    for (int32_t i = 0; i < dim; ++i) {
      if (!std::isfinite(v[j * kKeyStride + i])) return true;
    }
  }
  return false;
}

// ---- The stages of one panel and one key tile ----------------------------------------------------------------------
//
// C of a panel's vectors hold rows: all but in the last panel of a job.

// s[j] = q . k[j] for keys [j0, j1), widened to whole micro-tiles: what that adds is masked later.
template <int C>
HWY_NOINLINE void score(const float* HWY_RESTRICT q, const float* HWY_RESTRICT k, int32_t j0, int32_t j1, int32_t dim,
                        float* HWY_RESTRICT s) {
  const D d;
  for (int32_t j = j0 / kKeys * kKeys; j < j1; j += kKeys) {
    V acc[kKeys][C];
    for (auto& row : acc) {
      for (V& a : row) a = hn::Zero(d);
    }
    const float* kj = k + j * kKeyStride;
    for (int32_t i = 0; i < dim; ++i) {
      V x[C];
      for (int32_t c = 0; c < C; ++c) x[c] = hn::Load(d, q + i * kPanel + c * kVec);
      for (int32_t r = 0; r < kKeys; ++r) {
        const V y = hn::Set(d, kj[r * kKeyStride + i]);
        for (int32_t c = 0; c < C; ++c) acc[r][c] = hn::MulAdd(x[c], y, acc[r][c]);
      }
    }
    for (int32_t r = 0; r < kKeys; ++r) {
      for (int32_t c = 0; c < C; ++c) hn::Store(acc[r][c], d, s + (j + r) * kPanel + c * kVec);
    }
  }
}

// o[i] += sum over keys [j0, j1) of v[j][i] * p[j].
template <int C>
HWY_NOINLINE void accumulate(const float* HWY_RESTRICT p, const float* HWY_RESTRICT v, int32_t j0, int32_t j1, int32_t dim,
                             float* HWY_RESTRICT o) {
  const D d;
  for (int32_t i = 0; i < dim; i += kKeys) {
    V acc[kKeys][C];
    for (int32_t r = 0; r < kKeys; ++r) {
      for (int32_t c = 0; c < C; ++c) acc[r][c] = hn::Load(d, o + (i + r) * kPanel + c * kVec);
    }
    for (int32_t j = j0; j < j1; ++j) {
      V x[C];
      for (int32_t c = 0; c < C; ++c) x[c] = hn::Load(d, p + j * kPanel + c * kVec);
      for (int32_t r = 0; r < kKeys; ++r) {
        const V y = hn::Set(d, v[j * kKeyStride + i + r]);
        for (int32_t c = 0; c < C; ++c) acc[r][c] = hn::MulAdd(x[c], y, acc[r][c]);
      }
    }
    for (int32_t r = 0; r < kKeys; ++r) {
      for (int32_t c = 0; c < C; ++c) hn::Store(acc[r][c], d, o + (i + r) * kPanel + c * kVec);
    }
  }
}

// The same sum, lane by lane over the keys that each lane sees: a NaN in a key of weight 0 is never
// multiplied. Slow, and bit for bit the sum above where all is finite.
void accumulate_exact(const float* p, const float* v, const int64_t* lo, const int64_t* hi, int64_t base, int32_t dim, float* o) {
  const hn::CappedTag<float, 1> d1;
  for (int32_t lane = 0; lane < kPanel; ++lane) {
    const auto begin = std::clamp<int64_t>(lo[lane] - base, 0, kTileKeys);
    const auto end = std::clamp<int64_t>(hi[lane] - base, 0, kTileKeys);
    for (int32_t i = 0; i < dim; ++i) {
      auto acc = hn::Set(d1, o[i * kPanel + lane]);
      for (int64_t j = begin; j < end; ++j) {
        acc = hn::MulAdd(hn::Set(d1, p[j * kPanel + lane]), hn::Set(d1, v[j * kKeyStride + i]), acc);
      }
      o[i * kPanel + lane] = hn::GetLane(acc);
    }
  }
}

// Soft cap, ALiBi and masks, in that order; scores are in units of log2 afterwards.
template <int C>
void shape_scores(const AttentionParams& p, const F32Scratch& w, const Panel& panel, int64_t base) {
  const D d;
  const V cap = hn::Set(d, p.soft_cap * std::numbers::log2e_v<float>);
  const V none = hn::Set(d, -std::numeric_limits<float>::infinity());
  for (int32_t c = 0; c < C; ++c) {
    const int32_t lane = panel.lane + c * kVec;
    const V pos = hn::LoadU(d, w.lanes.pos + lane), slope = hn::LoadU(d, w.lanes.slope + lane);
    HWY_ALIGN float lo[kVec], hi[kVec];
    for (int32_t i = 0; i < kVec; ++i) {
      lo[i] = static_cast<float>(std::clamp<int64_t>(w.lanes.lo[lane + i] - base, 0, kTileKeys));
      hi[i] = static_cast<float>(std::clamp<int64_t>(w.lanes.hi[lane + i] - base, 0, kTileKeys));
    }
    const V lo_v = hn::Load(d, lo), hi_v = hn::Load(d, hi);
    for (int32_t j = panel.j0; j < panel.j1; ++j) {
      float* at = w.s + j * kPanel + c * kVec;
      V s = hn::Load(d, at);
      if (p.soft_cap > 0) s = hn::Mul(cap, tanh(s));
      if (p.alibi_slopes) s = hn::MulAdd(slope, hn::Sub(hn::Set(d, w.k_pos[j]), pos), s);
      const V jv = hn::Set(d, static_cast<float>(j));
      s = hn::IfThenElse(hn::And(hn::Ge(jv, lo_v), hn::Lt(jv, hi_v)), s, none);
      hn::Store(s, d, at);
    }
  }
}

// s becomes 2^(s - m), m and l are brought up to date, o is rescaled where a maximum grew.
template <int C>
void soft_max(const F32Scratch& w, const Panel& panel, int32_t dim) {
  const D d;
  V old[C], top[C], sum[C], rescale[C];
  bool grew = false;
  for (int32_t c = 0; c < C; ++c) old[c] = top[c] = hn::Load(d, w.m + panel.lane + c * kVec);
  for (int32_t j = panel.j0; j < panel.j1; ++j) {
    for (int32_t c = 0; c < C; ++c) top[c] = hn::Max(top[c], hn::Load(d, w.s + j * kPanel + c * kVec));
  }
  for (int32_t c = 0; c < C; ++c) {
    grew = grew || !hn::AllTrue(d, hn::Eq(old[c], top[c]));
    rescale[c] = exp2_nonpositive(hn::Sub(old[c], top[c]));
    sum[c] = hn::Mul(hn::Load(d, w.l + panel.lane + c * kVec), rescale[c]);
    hn::Store(top[c], d, w.m + panel.lane + c * kVec);
  }
  for (int32_t j = panel.j0; j < panel.j1; ++j) {
    for (int32_t c = 0; c < C; ++c) {
      float* at = w.s + j * kPanel + c * kVec;
      const V p = exp2_nonpositive(hn::Sub(hn::Load(d, at), top[c]));
      sum[c] = hn::Add(sum[c], p);
      hn::Store(p, d, at);
    }
  }
  for (int32_t c = 0; c < C; ++c) hn::Store(sum[c], d, w.l + panel.lane + c * kVec);
  if (!grew) return;
  float* o = w.o + panel.lane * dim;
  for (int32_t i = 0; i < dim; ++i) {
    for (int32_t c = 0; c < C; ++c) {
      float* at = o + i * kPanel + c * kVec;
      hn::Store(hn::Mul(hn::Load(d, at), rescale[c]), d, at);
    }
  }
}

// ---- A job ---------------------------------------------------------------------------------------------------------

// Takes q in, scaled so that the scores come out in units of log2 (or as the argument of tanh).
void load_queries(const TileJob& job, int32_t padded, const F32Scratch& w) {
  const AttentionParams& p = *job.params;
  const int32_t dim = p.kv.head_dim, lanes = job.rows * job.heads;
  const float k_scale = p.kv.k_scale ? p.kv.k_scale[job.kv_head] : 1.0f;
  const float scale = p.scale * k_scale * (p.soft_cap > 0 ? 1.0f / p.soft_cap : std::numbers::log2e_v<float>);
  for (int32_t lane = 0; lane < padded; ++lane) {
    float* to = w.q + lane / kPanel * kPanel * dim + lane % kPanel;
    const int64_t row = job.row + lane / job.heads;
    const int64_t from = (row * p.heads_per_row() + job.head + lane % job.heads) * dim;
    for (int32_t i = 0; i < dim; ++i) to[i * kPanel] = lane < lanes ? load_as_f32(p.q, p.dtype, from + i) * scale : 0.0f;
    w.m[lane] = kNoMax;
    w.l[lane] = 0.0f;
  }
  std::fill(w.o, w.o + static_cast<int64_t>(padded) * dim, 0.0f);
}

template <int C>
void attend_panel(const TileJob& job, const F32Scratch& w, const Panel& panel, int64_t base, bool exact) {
  const AttentionParams& p = *job.params;
  const int32_t dim = p.kv.head_dim;
  float* o = w.o + panel.lane * dim;
  score<C>(w.q + panel.lane * dim, w.k, panel.j0, panel.j1, dim, w.s);
  if (!panel.whole || p.soft_cap > 0 || p.alibi_slopes) shape_scores<C>(p, w, panel, base);
  soft_max<C>(w, panel, dim);
  if (exact) {
    accumulate_exact(w.s, w.v, w.lanes.lo + panel.lane, w.lanes.hi + panel.lane, base, dim, o);
  } else {
    accumulate<C>(w.s, w.v, panel.j0, panel.j1, dim, o);
  }
}

void prefill_job_f32(const TileJob& job, float* scratch) {
  const int32_t dim = job.params->kv.head_dim, lanes = job.rows * job.heads;
  const int32_t padded = (lanes + kPanel - 1) / kPanel * kPanel;
  FOVEA_CHECK(padded <= kLanes);
  ScratchCarver carver(scratch);
  const F32Scratch w = carve(carver, dim);
  fill_lanes(job, padded, w.lanes);
  load_queries(job, padded, w);
  // Rows ascend in position: the first sees from the lowest key, the last up to the highest.
  const int64_t first = w.lanes.lo[0], last = w.lanes.hi[lanes - 1];
  const int64_t all_from = w.lanes.lo[lanes - 1], all_to = w.lanes.hi[0];  // keys that every row sees
  for (int64_t base = first / kTileKeys * kTileKeys; base < last; base += kTileKeys) {
    const int64_t begin = std::max(base, first), end = std::min(base + kTileKeys, last);
    wait_for_keys(job, end);
    pack_tile(job, base, begin, end, w);
    const bool exact = has_nonfinite(w.v, begin - base, std::clamp(all_from, begin, end) - base, dim) ||
                       has_nonfinite(w.v, std::clamp(all_to, begin, end) - base, end - base, dim);
    for (int32_t lane = 0; lane < padded; lane += kPanel) {
      const Panel panel = panel_of(w.lanes, lane, kPanel, base, kTileKeys);
      if (panel.j0 >= panel.j1) continue;
      const int32_t vecs = (lanes - lane + kVec - 1) / kVec;
      if (vecs >= kVecs) {
        attend_panel<kVecs>(job, w, panel, base, exact);
      } else if (vecs == 2) {
        attend_panel<2>(job, w, panel, base, exact);
      } else {
        attend_panel<1>(job, w, panel, base, exact);
      }
    }
  }
  store_results(job, {.o = w.o, .m = w.m, .l = w.l, .panel = kPanel, .dim_stride = dim});
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fovea::cpu {

HWY_EXPORT(prefill_job_f32);

size_t prefill_f32_scratch(int32_t head_dim) {
  ScratchCarver counter(nullptr);
  carve(counter, head_dim);
  return counter.used();
}

void prefill_f32(const TileJob& job, float* scratch) { HWY_DYNAMIC_DISPATCH(prefill_job_f32)(job, scratch); }

}  // namespace fovea::cpu
#endif
