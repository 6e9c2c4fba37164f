// The engine of AVX-512 bf16 dot products, included once with the instruction (prefill_dot.cpp) and once with its emulation
// (tests).
//
// As in float32, lanes of a vector are query rows: S^T = K Q^T and O^T += V^T P^T broadcast a pair of K or V and multiply it with
// pairs of rows side by side. Pairs of K are neighbours as the cache holds them; those of V are two keys, laid out once per key
// tile; those of the weights are how the softmax leaves them.
#include <hwy/base.h>
#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numbers>

#include "base/check.h"
#include "kernels/common/convert.h"
#include "kernels/cpu/attention/prefill_dot.h"
#include "kernels/cpu/attention/prefill_engine.h"
#include "kernels/cpu/attention/prefill_scratch.h"

// The attributes and not the unit's flags: what the unit shares with others stays runnable on any CPU.
#ifdef FOVEA_DOT_EMULATE
HWY_PUSH_ATTRIBUTES("avx2,fma,avx512f,avx512bw,avx512cd,avx512dq,avx512vl")
#else
HWY_PUSH_ATTRIBUTES("avx2,fma,avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512bf16")
#endif
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push  // as in prefill_amx_inl.h
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include "kernels/cpu/attention/dot_pairs_inl.h"
#include "kernels/cpu/attention/prefill_amx_rows.h"
#include "kernels/cpu/attention/prefill_bf16_inl.h"

namespace fovea::cpu {
namespace {

constexpr int32_t kTileKeys = 128;
constexpr int32_t kPanel = kPrefillDotLanes.panel;
constexpr int32_t kLanes = kPrefillDotLanes.most;
// Accumulators of the micro-kernels: kRows x 3 of 32 registers; the others hold what feeds them.
constexpr int32_t kRows = 8;
// Elements between rows of K: constant, so that every broadcast has an immediate offset; an odd number of cache lines, so that the
// rows spread over the sets of L1.
constexpr int32_t kKeyStride = 288;
constexpr int32_t kMaxDim = 256;

struct Scratch {
  uint16_t* q;        // [panels, d / 2, kPanel, 2] scaled
  float* o;           // [panels, d, kPanel]
  uint16_t* k;        // [kTileKeys, kKeyStride]
  uint16_t* v_rows;   // [kTileKeys, kKeyStride]
  uint16_t* v;        // [d / kRows, kTileKeys / 2, kRows, 2]
  uint16_t* v_exact;  // as v: the part that one row sees
  float* o_exact;     // [d, kPanel]
  float* s;           // [kTileKeys, kPanel] scores; then, in its first half, weights [kTileKeys / 2, kPanel, 2] in bf16
  float* m;           // [lanes] maximum, in units of log2
  float* l;           // [lanes] sum of weights
  float* k_pos;       // [kTileKeys]
  LaneView lanes;
};

Scratch carve(ScratchCarver& c, int32_t dim) {
  Scratch w{};
  w.q = c.halves(int64_t{kLanes} * dim);
  w.o = c.floats(int64_t{kLanes} * dim);
  w.k = c.halves(kTileKeys * kKeyStride);
  w.v_rows = c.halves(kTileKeys * kKeyStride);
  w.v = c.halves(int64_t{kTileKeys} * dim);
  w.v_exact = c.halves(int64_t{kTileKeys} * dim);
  w.o_exact = c.floats(int64_t{kPanel} * dim);
  w.s = c.floats(kTileKeys * kPanel);
  w.m = c.floats(kLanes);
  w.l = c.floats(kLanes);
  w.k_pos = c.floats(kTileKeys);
  w.lanes = {c.longs(kLanes), c.longs(kLanes), c.floats(kLanes), c.floats(kLanes)};
  return w;
}

// ---- K and V of a key tile -----------------------------------------------------------------------------------------

// Keys [begin, end) of the list into the tile that starts at key `base`. Nothing else is read.
void gather_tile(const TileJob& job, int64_t base, int64_t begin, int64_t end, const Scratch& w) {
  const KvView& kv = job.params->kv;
  KeyRuns runs(job.keys, kv, job.seq, job.kv_head, begin, end);
  for (KeyRun run; runs.next(&run);) {
    for (int32_t i = 0; i < run.n; ++i) {
      const int64_t j = run.index - base + i;
      convert_k(kv, run, i, w.k + j * kKeyStride);
      convert_v(kv, run, i, w.v_rows + j * kKeyStride);
      w.k_pos[j] = static_cast<float>(run.pos + i);
    }
  }
}

// Keys [begin, end) of v_rows to pairs; the neighbour that one of them may lack is zero.
void pack_values(const Scratch& w, int64_t begin, int64_t end, int32_t dim) {
  if (begin % 2 != 0) std::fill_n(w.v_rows + (begin - 1) * kKeyStride, dim, uint16_t{0});
  if (end % 2 != 0) std::fill_n(w.v_rows + end * kKeyStride, dim, uint16_t{0});
  for (int64_t pair = begin / 2; 2 * pair < end; ++pair) {
    const uint16_t* row = w.v_rows + 2 * pair * kKeyStride;
    for (int32_t i = 0; i < dim; i += 2 * kRows) {
      const __m256i a = _mm256_load_si256(reinterpret_cast<const __m256i*>(row + i));
      const __m256i b = _mm256_load_si256(reinterpret_cast<const __m256i*>(row + kKeyStride + i));
      const __m256i lo = _mm256_unpacklo_epi16(a, b), hi = _mm256_unpackhi_epi16(a, b);  // of dims 0-3 and 8-11, 4-7 and 12-15
      uint16_t* to = w.v + (i / kRows * int64_t{kTileKeys / 2} + pair) * 2 * kRows;
      _mm256_store_si256(reinterpret_cast<__m256i*>(to), _mm256_permute2x128_si256(lo, hi, 0x20));
      _mm256_store_si256(reinterpret_cast<__m256i*>(to + kTileKeys * kRows), _mm256_permute2x128_si256(lo, hi, 0x31));
    }
  }
}

// Is there a V among keys [begin, end) that would show, were its weight 0?
bool has_nonfinite(const Scratch& w, int64_t begin, int64_t end, int32_t dim) {
  for (int64_t j = begin; j < end; ++j) {
    for (int32_t i = 0; i < dim; ++i) {
      if ((w.v_rows[j * kKeyStride + i] & 0x7f80) == 0x7f80) return true;
    }
  }
  return false;
}

// ---- The stages of one panel and one key tile ----------------------------------------------------------------------
//
// C of a panel's vectors hold rows: all but in the last panel of a job.

// s[j] = q . k[j] for keys [j0, j1), widened to whole micro-tiles: what that adds is not read, or masked.
template <int C>
HWY_NOINLINE void score(const uint16_t* q, const uint16_t* k, int32_t j0, int32_t j1, int32_t dim, float* s) {
  for (int32_t j = j0 / kRows * kRows; j < j1; j += kRows) {
    __m512 acc[kRows][C];
    for (auto& row : acc) {
      for (__m512& a : row) a = _mm512_setzero_ps();
    }
    const uint16_t* kj = k + j * kKeyStride;
    const uint16_t* x = q;
    for (int32_t i = 0; i < dim; i += 2, x += 2 * kPanel) {
      __m512i rows[C];
      for (int c = 0; c < C; ++c) rows[c] = _mm512_load_si512(x + 32 * c);
      for (int r = 0; r < kRows; ++r) {
        const __m512i y = broadcast_pair(kj + r * kKeyStride + i);
        for (int c = 0; c < C; ++c) acc[r][c] = dot(acc[r][c], rows[c], y);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < C; ++c) _mm512_store_ps(s + (j + r) * kPanel + 16 * c, acc[r][c]);
    }
  }
}

// o[i] += sum over pairs of keys [pair0, pair1) of v[pair][i] . p[pair].
template <int C>
HWY_NOINLINE void accumulate(const uint16_t* p, const uint16_t* v, int32_t pair0, int32_t pair1, int32_t dim, float* o) {
  for (int32_t i = 0; i < dim; i += kRows, v += kTileKeys * kRows, o += kRows * kPanel) {
    __m512 acc[kRows][C];
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < C; ++c) acc[r][c] = _mm512_load_ps(o + r * kPanel + 16 * c);
    }
    for (int32_t pair = pair0; pair < pair1; ++pair) {
      __m512i rows[C];
      for (int c = 0; c < C; ++c) rows[c] = _mm512_load_si512(p + pair * 2 * kPanel + 32 * c);
      for (int r = 0; r < kRows; ++r) {
        const __m512i y = broadcast_pair(v + (pair * kRows + r) * 2);
        for (int c = 0; c < C; ++c) acc[r][c] = dot(acc[r][c], rows[c], y);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < C; ++c) _mm512_store_ps(o + r * kPanel + 16 * c, acc[r][c]);
    }
  }
}

// The same for a key tile that holds an infinity or a NaN some row must not multiply: each row of the panel
// with a copy of V in which the keys that it does not see are 0.
template <int C>
void accumulate_exact(const Scratch& w, const Panel& panel, int64_t base, int32_t dim, float* o) {
  const int32_t pair0 = panel.j0 / 2, pair1 = (panel.j1 + 1) / 2;
  for (int32_t lane = 0, stop = 0; lane < 16 * C; lane = stop) {
    const int64_t lo = w.lanes.lo[panel.lane + lane] - base, hi = w.lanes.hi[panel.lane + lane] - base;
    for (stop = lane; stop < 16 * C; ++stop) {
      if (w.lanes.lo[panel.lane + stop] - base != lo || w.lanes.hi[panel.lane + stop] - base != hi) break;
    }
    for (int64_t i = 0; i < int64_t{kTileKeys} * dim; ++i) {
      const int64_t j = i / (2 * kRows) % (kTileKeys / 2) * 2 + i % 2;
      w.v_exact[i] = j >= lo && j < hi ? w.v[i] : 0;
    }
    std::copy_n(o, int64_t{dim} * kPanel, w.o_exact);
    accumulate<C>(reinterpret_cast<uint16_t*>(w.s), w.v_exact, pair0, pair1, dim, w.o_exact);
    for (int32_t i = 0; i < dim; ++i) {
      for (int32_t c = lane; c < stop; ++c) o[i * kPanel + c] = w.o_exact[i * kPanel + c];
    }
  }
}

// Weights of keys [j0, j1), both even: 2^(s - m) in bf16 pairs; their float32 sum goes to l. A pair of weights takes the place of
// scores that were read before.
template <int C>
void weigh(float* s, int32_t j0, int32_t j1, const float* m, float* l) {
  __m512 top[C], sum[C];
  for (int c = 0; c < C; ++c) {
    top[c] = _mm512_load_ps(m + 16 * c);
    sum[c] = _mm512_load_ps(l + 16 * c);
  }
  for (int32_t j = j0; j < j1; j += 2) {
    const float* from = s + j * kPanel;
    float* to = s + j / 2 * kPanel;
    for (int c = 0; c < C; ++c) {
      const __m512 a = exp2_ps(_mm512_sub_ps(_mm512_load_ps(from + 16 * c), top[c]));
      const __m512 b = exp2_ps(_mm512_sub_ps(_mm512_load_ps(from + kPanel + 16 * c), top[c]));
      sum[c] = _mm512_add_ps(sum[c], _mm512_add_ps(a, b));
      _mm512_store_si512(to + 16 * c, pack_pair(a, b));
    }
  }
  for (int c = 0; c < C; ++c) _mm512_store_ps(l + 16 * c, sum[c]);
}

// ---- A job ---------------------------------------------------------------------------------------------------------

// Takes q in, scaled so that the scores come out in units of log2 (or as the argument of tanh), rounded to
// bf16 once.
void load_queries(const TileJob& job, int32_t padded, const Scratch& w) {
  const AttentionParams& p = *job.params;
  const int32_t dim = p.kv.head_dim, lanes = job.rows * job.heads;
  const float k_scale = p.kv.k_scale ? p.kv.k_scale[job.kv_head] : 1.0f;
  const float scale = p.scale * k_scale * (p.soft_cap > 0 ? 1.0f / p.soft_cap : std::numbers::log2e_v<float>);
  for (int32_t lane = 0; lane < padded; ++lane) {
    uint16_t* to = w.q + int64_t{lane / kPanel} * kPanel * dim + lane % kPanel * 2;
    const int64_t row = job.row + lane / job.heads;
    const int64_t from = (row * p.heads_per_row() + job.head + lane % job.heads) * dim;
    alignas(64) float x[kMaxDim] = {};
    alignas(64) uint16_t rounded[kMaxDim];
    if (lane < lanes) load_query(p, from, x);
    for (int32_t i = 0; i < dim; i += 16) {
      const __m256i bits = round_bf16(_mm512_mul_ps(_mm512_load_ps(x + i), _mm512_set1_ps(scale)));
      _mm256_store_si256(reinterpret_cast<__m256i*>(rounded + i), bits);
    }
    for (int32_t i = 0; i < dim; i += 2) std::memcpy(to + i * kPanel, rounded + i, 4);
    w.m[lane] = kNoMax;
    w.l[lane] = 0.0f;
  }
  std::fill(w.o, w.o + int64_t{padded} * dim, 0.0f);
}

template <int C>
void attend_panel(const TileJob& job, const Scratch& w, const Panel& panel, int64_t base, bool exact) {
  const AttentionParams& p = *job.params;
  const int32_t dim = p.kv.head_dim, j0 = panel.j0 / 2 * 2, j1 = (panel.j1 + 1) / 2 * 2;
  float* o = w.o + int64_t{panel.lane} * dim;
  score<C>(w.q + int64_t{panel.lane} * dim, w.k, j0, j1, dim, w.s);
  const bool shaped = !panel.whole || j0 != panel.j0 || j1 != panel.j1;
  if (shaped || p.soft_cap > 0 || p.alibi_slopes) {
    shape_scores<C, kPanel>(p, w.lanes, w.k_pos, panel.lane, base, kTileKeys, j0, j1, w.s);
  }
  raise_maximum<C, kPanel>(w.s, j0, j1, dim, w.m + panel.lane, w.l + panel.lane, o);
  weigh<C>(w.s, j0, j1, w.m + panel.lane, w.l + panel.lane);
  if (exact) {
    accumulate_exact<C>(w, panel, base, dim, o);
  } else {
    accumulate<C>(reinterpret_cast<const uint16_t*>(w.s), w.v, j0 / 2, j1 / 2, dim, o);
  }
}

void prefill_job_dot(const TileJob& job, float* scratch) {
  const int32_t dim = job.params->kv.head_dim, lanes = job.rows * job.heads;
  const int32_t padded = (lanes + kPanel - 1) / kPanel * kPanel;
  FOVEA_CHECK(padded <= kLanes);
  ScratchCarver carver(scratch);
  const Scratch w = carve(carver, dim);
  fill_lanes(job, padded, w.lanes);
  load_queries(job, padded, w);
  // Rows ascend in position: the first sees from the lowest key, the last up to the highest.
  const int64_t first = w.lanes.lo[0], last = w.lanes.hi[lanes - 1];
  const int64_t all_from = w.lanes.lo[lanes - 1], all_to = w.lanes.hi[0];  // keys that every row sees
  for (int64_t base = first / kTileKeys * kTileKeys; base < last; base += kTileKeys) {
    const int64_t begin = std::max(base, first), end = std::min(base + kTileKeys, last);
    wait_for_keys(job, end);
    gather_tile(job, base, begin, end, w);
    const bool exact = has_nonfinite(w, begin - base, std::clamp(all_from, begin, end) - base, dim) ||
                       has_nonfinite(w, std::clamp(all_to, begin, end) - base, end - base, dim);
    pack_values(w, begin - base, end - base, dim);
    for (int32_t lane = 0; lane < padded; lane += kPanel) {
      const Panel panel = panel_of(w.lanes, lane, kPanel, base, kTileKeys);
      if (panel.j0 >= panel.j1) continue;
      const int32_t vecs = (lanes - lane + 15) / 16;
      if (vecs >= 3) {
        attend_panel<3>(job, w, panel, base, exact);
      } else if (vecs == 2) {
        attend_panel<2>(job, w, panel, base, exact);
      } else {
        attend_panel<1>(job, w, panel, base, exact);
      }
    }
  }
  store_results(job, {.o = w.o, .m = w.m, .l = w.l, .panel = kPanel, .dim_stride = dim});
}

size_t scratch_floats(int32_t dim) {
  ScratchCarver counter(nullptr);
  carve(counter, dim);
  return counter.used();
}

}  // namespace
}  // namespace fovea::cpu
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
HWY_POP_ATTRIBUTES
