// As in prefill attention (docs/attention-prefill.md), lanes of a vector are rows: S^T = K Q^T broadcasts one element of
// K and multiplies it with rows side by side. Here a row is a cell of queries, stride * head_dim long with its tokens
// reversed, and a key is a cell of keys: in the cache it lies as it is needed.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)  // vectors stand in arrays

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/xattention/xattention_f32.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/attention/prefill_keys.h"
#include "kernels/cpu/attention/prefill_scratch.h"
#include "kernels/cpu/attention/prefill_vector_inl.h"
#include "kernels/cpu/xattention/xattention_f32.h"
#include "kernels/cpu/xattention/xattention_lanes.h"

#ifndef FOVEA_XATTENTION_F32_SHARED
#define FOVEA_XATTENTION_F32_SHARED
namespace fovea::cpu {

constexpr int32_t kWidestPanel = 48;
// Elements of the depth that one sweep over the key tile takes: what it needs of a panel of queries stays in L1.
constexpr int64_t kSweep = 128;

// Scratch of one worker.
struct XScratch {
  float* k;       // [tile cells, k_stride]
  float* s;       // [tile cells, panel] scores
  float* s_half;  // the same over the first half of the depth
  XLanes lanes;
  int64_t k_stride;
};

inline XScratch carve(ScratchCarver& c, int32_t stride, int32_t dim) {
  const int64_t cells = xattention_tile_cells(stride, dim);
  XScratch w{};
  w.k_stride = int64_t{stride} * dim + 16;  // an odd number of cache lines: rows spread over the sets of L1
  w.k = c.floats(cells * w.k_stride);
  w.s = c.floats(cells * kWidestPanel);
  w.s_half = c.floats(cells * kWidestPanel);
  w.lanes = carve_lanes(c, kXF32Lanes);
  return w;
}

}  // namespace fovea::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace fovea::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

static_assert(kXF32Lanes % kPanel == 0 && kPanel <= kWidestPanel && 8 % kKeys == 0);

// ---- Queries and keys of a job --------------------------------------------------------------------------------

// To [panels, depth, panel], scaled. Queries that do not exist are zero.
void pack_queries(const XJob& job) {
  const XAttentionParams& p = *job.params;
  const int32_t dim = p.kv.head_dim;
  const float scale = xattention_scale(p, job.kv_head);
  const int64_t depth = int64_t{p.stride} * dim;
  for (int32_t first = 0; first < job.lanes; first += kPanel) {
    for (int32_t s = 0; s < p.stride; ++s) {
      float* to = job.q + first * depth + int64_t{s} * dim * kPanel;
      for (int32_t lane = first; lane < first + kPanel; ++lane, ++to) {
        const float* from = lane < job.lanes ? xattention_query(job, lane, s) : nullptr;
        for (int32_t e = 0; e < dim; ++e) to[int64_t{e} * kPanel] = from ? from[e] * scale : 0.0f;
      }
    }
  }
}

template <typename T>
void widen_run(const XAttentionParams& p, const KeyRun& run, int64_t first, const XScratch& w) {
  const KvView& kv = p.kv;
  const int32_t dim = kv.head_dim, x = static_cast<int32_t>(16 / sizeof(T));
  const T* k = static_cast<const T*>(kv.k) + run.base;
  for (int32_t i = 0; i < run.n; ++i) {
    const int64_t pos = run.pos + i, token = run.offset + i;
    float* to = w.k + (pos / p.stride - first) * w.k_stride + pos % p.stride * dim;
    if (kv.layout == KvLayout::hnd) {
      widen_row(k + token * kv.tokens_apart(), dim, to);
    } else {
      widen_classic(k + token * x, dim, x, int64_t{kv.block_size} * x, to);
    }
  }
}

// Cells [first, first + cells) as float32 rows. Keys that do not exist are not read; zero stands for them.
void pack_keys(const XJob& job, int64_t first, int32_t cells, const XScratch& w) {
  const XAttentionParams& p = *job.params;
  const int64_t begin = first * p.stride, end = std::min(job.strip->len, (first + cells) * p.stride);
  const KeyList every;
  KeyRuns runs(every, p.kv, job.strip->seq, job.kv_head, begin, end);
  for (KeyRun run; runs.next(&run);) {
    with_element(p.kv.dtype, [&](auto* t) { widen_run<std::remove_pointer_t<decltype(t)>>(p, run, first, w); });
  }
  const int64_t missing = (first + cells) * p.stride - end;
  float* row = w.k + (cells - 1) * w.k_stride;
  const int32_t dim = p.kv.head_dim;
  std::fill(row + (p.stride - missing) * dim, row + int64_t{p.stride} * dim, 0.0f);
}

// ---- Scores of one panel and one key tile -----------------------------------------------------------------------
//
// C of the panel's vectors hold lanes: all but in the last panel of a job.

// s[j] = q . k[j] over `depth` elements, for rows [j0, j1) of whole micro-tiles.
template <int C>
HWY_NOINLINE void score(const float* HWY_RESTRICT q, const float* HWY_RESTRICT k, int64_t k_stride, int32_t j0, int32_t j1,
                        int64_t depth, float* HWY_RESTRICT s) {
  const D d;
  for (int64_t from = 0; from < depth; from += kSweep) {
    const int64_t to = std::min(depth, from + kSweep);
    for (int32_t j = j0; j < j1; j += kKeys) {
      V acc[kKeys][C];
      float* sj = s + j * kPanel;
      for (int32_t r = 0; r < kKeys; ++r) {
        for (int32_t c = 0; c < C; ++c) {
          acc[r][c] = from == 0 ? hn::Zero(d) : hn::Load(d, sj + r * kPanel + c * kVec);
        }
      }
      const float* kj = k + j * k_stride;
      for (int64_t i = from; i < to; ++i) {
        V x[C];
        for (int32_t c = 0; c < C; ++c) x[c] = hn::Load(d, q + i * kPanel + c * kVec);
        for (int32_t r = 0; r < kKeys; ++r) {
          const V y = hn::Set(d, kj[r * k_stride + i]);
          for (int32_t c = 0; c < C; ++c) acc[r][c] = hn::MulAdd(x[c], y, acc[r][c]);
        }
      }
      for (int32_t r = 0; r < kKeys; ++r) {
        for (int32_t c = 0; c < C; ++c) hn::Store(acc[r][c], d, sj + r * kPanel + c * kVec);
      }
    }
  }
}

// Scores of one panel against the cells of a view.
template <int C>
void score_panel(const XJob& job, const XScratch& w, const XPanelView& view) {
  const int64_t depth = int64_t{job.params->stride} * job.params->kv.head_dim;
  const float* q = job.q + view.lane * depth;
  const int32_t stop = (view.seen + kKeys - 1) / kKeys * kKeys;
  score<C>(q, w.k, w.k_stride, 0, stop, depth, w.s);
  if (view.diagonal) score<C>(q, w.k, w.k_stride, view.own / kKeys * kKeys, stop, depth / 2, w.s_half);
}

void score_job(const XJob& job, float* scratch) {
  const XAttentionParams& p = *job.params;
  ScratchCarver carver(scratch);
  const XScratch w = carve(carver, p.stride, p.kv.head_dim);
  fill_xlanes(job, kXF32Lanes, w.lanes);
  const int32_t per_block = p.block_size / p.stride, tile = xattention_tile_cells(p.stride, p.kv.head_dim);
  const int64_t all = (job.strip->len + p.stride - 1) / p.stride;
  const int64_t stop = std::min<int64_t>(all, int64_t{job.block_end} * per_block);
  for (int64_t first = int64_t{job.block_begin} * per_block; first < stop; first += tile) {
    const auto cells = static_cast<int32_t>(std::min<int64_t>(tile, stop - first));
    if (p.causal && first > w.lanes.cell[job.lanes - 1]) return;
    pack_keys(job, first, cells, w);
    for (int32_t lane = 0; lane < job.lanes; lane += kPanel) {
      const XPanelView view = xattention_panel(job, w.lanes, lane, std::min(kPanel, job.lanes - lane), first, cells);
      if (view.seen <= 0) continue;
      const int32_t vecs = (view.lanes + kVec - 1) / kVec;
      if (vecs == kVecs) {
        score_panel<kVecs>(job, w, view);
      } else if (vecs == 2) {
        score_panel<2>(job, w, view);
      } else {
        score_panel<1>(job, w, view);
      }
      xattention_weigh(job, w.lanes, view, w.s, w.s_half, kPanel);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fovea::cpu {

HWY_EXPORT(pack_queries);
HWY_EXPORT(score_job);

size_t xattention_f32_scratch(int32_t stride, int32_t head_dim) {
  ScratchCarver counter(nullptr);
  carve(counter, stride, head_dim);
  return counter.used();
}

int64_t xattention_f32_query_floats(int32_t lanes, int64_t depth) {
  return (lanes + kWidestPanel - 1) / kWidestPanel * kWidestPanel * depth;
}

void xattention_f32_pack_queries(const XJob& job) { HWY_DYNAMIC_DISPATCH(pack_queries)(job); }

void xattention_f32_score(const XJob& job, float* scratch) { HWY_DYNAMIC_DISPATCH(score_job)(job, scratch); }

}  // namespace fovea::cpu
#endif
