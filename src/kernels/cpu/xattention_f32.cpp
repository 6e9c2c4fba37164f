// As in prefill attention (docs/attention-prefill.md), lanes of a vector are rows: S^T = K Q^T broadcasts one element of
// K and multiplies it with rows side by side. Here a row is a cell of queries, stride * head_dim long with its tokens
// reversed, and a key is a cell of keys: in the cache it lies as it is needed.
#define HWY_DISABLED_TARGETS \
  (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)  // vectors stand in arrays

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/xattention_f32.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <limits>
#include <numbers>

#include "base/check.h"
#include "kernels/cpu/prefill_keys.h"
#include "kernels/cpu/prefill_scratch.h"
#include "kernels/cpu/prefill_vector_inl.h"
#include "kernels/cpu/xattention_f32.h"

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
  int32_t* cell;  // [lanes] of the sequence
  int32_t* lo;    // [lanes] the queries that exist meet keys s of [lo, hi) of a cell
  int32_t* hi;
  int64_t* out;   // [lanes] element of tops and weights at block 0
  int64_t k_stride;
};

inline XScratch carve(ScratchCarver& c, int32_t stride, int32_t dim) {
  const int64_t cells = xattention_tile_cells(stride, dim);
  XScratch w{};
  w.k_stride = int64_t{stride} * dim + 16;  // an odd number of cache lines: rows spread over the sets of L1
  w.k = c.floats(cells * w.k_stride);
  w.s = c.floats(cells * kWidestPanel);
  w.s_half = c.floats(cells * kWidestPanel);
  w.cell = reinterpret_cast<int32_t*>(c.floats(kXF32Lanes));
  w.lo = reinterpret_cast<int32_t*>(c.floats(kXF32Lanes));
  w.hi = reinterpret_cast<int32_t*>(c.floats(kXF32Lanes));
  w.out = c.longs(kXF32Lanes);
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

// To [panels, depth, panel], scaled: scores come out in units of log2. Queries that do not exist are zero.
void pack_queries(const XJob& job) {
  const XAttentionParams& p = *job.params;
  const XStrip& strip = *job.strip;
  const int32_t dim = p.kv.head_dim, group = p.num_heads / p.kv.kv_heads;
  const float k_scale = p.kv.k_scale ? p.kv.k_scale[job.kv_head] : 1.0f;
  const float scale =
      std::numbers::log2e_v<float> * p.scale * k_scale / (static_cast<float>(p.stride) * p.norm);
  const int64_t depth = int64_t{p.stride} * dim;
  for (int32_t first = 0; first < job.lanes; first += kPanel) {
    for (int32_t s = 0; s < p.stride; ++s) {
      float* to = job.q + first * depth + int64_t{s} * dim * kPanel;
      for (int32_t i = 0; i < kPanel; ++i, ++to) {
        const int32_t lane = job.lane + first + i;
        const int64_t pos = (int64_t{strip.cell} + lane / group) * p.stride + p.stride - 1 - s;
        if (first + i >= job.lanes || pos < strip.begin || pos >= strip.end) {
          for (int32_t e = 0; e < dim; ++e) to[int64_t{e} * kPanel] = 0.0f;
          continue;
        }
        const int64_t head = int64_t{job.kv_head} * group + lane % group;
        const float* from = p.q + ((strip.row + pos - strip.begin) * p.num_heads + head) * dim;
        for (int32_t e = 0; e < dim; ++e) to[int64_t{e} * kPanel] = from[e] * scale;
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
      widen_row(k + token * dim, dim, to);
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
    switch (p.kv.dtype) {
      case DType::f32:
        widen_run<float>(p, run, first, w);
        break;
      case DType::f16:
        widen_run<hwy::float16_t>(p, run, first, w);
        break;
      default:
        widen_run<uint16_t>(p, run, first, w);
        break;
    }
  }
  const int64_t missing = (first + cells) * p.stride - end;
  float* row = w.k + (cells - 1) * w.k_stride;
  const int32_t dim = p.kv.head_dim;
  std::fill(row + (p.stride - missing) * dim, row + int64_t{p.stride} * dim, 0.0f);
}

void fill_lanes(const XJob& job, const XScratch& w) {
  const XAttentionParams& p = *job.params;
  const XStrip& strip = *job.strip;
  const int32_t group = p.num_heads / p.kv.kv_heads, stride = p.stride;
  for (int32_t i = 0; i < kXF32Lanes; ++i) {
    const int32_t lane = job.lane + std::min(i, job.lanes - 1), cell = lane / group;
    const int64_t at = (int64_t{strip.cell} + cell) * stride;  // query at + o exists for o of [from, to), meets s = S - 1 - o
    const auto from = static_cast<int32_t>(std::max<int64_t>(0, strip.begin - at));
    const auto to = static_cast<int32_t>(std::min<int64_t>(stride, strip.end - at));
    w.cell[i] = strip.cell + cell;
    w.lo[i] = stride - to;
    w.hi[i] = stride - from;
    const int64_t head = int64_t{job.kv_head} * group + lane % group;
    w.out[i] = ((int64_t{strip.first_out} + cell) * p.num_heads + head) * job.block_stride;
  }
}

// ---- Scores of one panel and one key tile -----------------------------------------------------------------------
//
// C of the panel's vectors hold lanes: all but in the last panel of a job.

// s[j] = q . k[j] over `depth` elements, for rows [j0, j1) of whole micro-tiles.
template <int C>
HWY_NOINLINE void score(const float* HWY_RESTRICT q, const float* HWY_RESTRICT k, int64_t k_stride, int32_t j0,
                        int32_t j1, int64_t depth, float* HWY_RESTRICT s) {
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

// Puts -inf where a cell has no pair, and where a cell of queries meets itself (causal) the sum over the pairs whose key
// is not after its query: those are the first half of the depth.
template <int C>
void mask(const XJob& job, const XScratch& w, int32_t lane, int64_t first, int32_t cells) {
  const XAttentionParams& p = *job.params;
  const D d;
  const DI di;
  const V none = hn::Set(d, -std::numeric_limits<float>::infinity());
  for (int32_t c = 0; c < C; ++c) {
    const auto cell = hn::LoadU(di, w.cell + lane + c * kVec);
    const auto lo = hn::LoadU(di, w.lo + lane + c * kVec), hi = hn::LoadU(di, w.hi + lane + c * kVec);
    for (int32_t j = 0; j < cells; ++j) {
      float* at = w.s + j * kPanel + c * kVec;
      const auto exist = static_cast<int32_t>(std::min<int64_t>(p.stride, job.strip->len - (first + j) * p.stride));
      auto stop = hn::Min(hi, hn::Set(di, exist));
      V x = hn::Load(d, at);
      if (!p.causal) {
        hn::Store(hn::IfThenElse(hn::RebindMask(d, hn::Lt(lo, stop)), x, none), d, at);
        continue;
      }
      const auto here = hn::Set(di, static_cast<int32_t>(first + j));
      const auto own = hn::Eq(cell, here);
      stop = hn::IfThenElse(own, hn::Min(stop, hn::Set(di, p.stride / 2)), stop);
      x = hn::IfThenElse(hn::RebindMask(d, own), hn::Load(d, w.s_half + j * kPanel + c * kVec), x);
      const auto seen = hn::AndNot(hn::Gt(here, cell), hn::Lt(lo, stop));
      hn::Store(hn::IfThenElse(hn::RebindMask(d, seen), x, none), d, at);
    }
  }
}

// Greatest score and sum of 2^(score - greatest) of each lane over rows [j0, j1), which lie in block `block`.
template <int C>
void weigh_block(const XJob& job, const XScratch& w, int32_t lane, int32_t lanes, int32_t j0, int32_t j1,
                 int64_t block) {
  const D d;
  HWY_ALIGN float tops[kPanel] = {}, weights[kPanel] = {};
  for (int32_t c = 0; c < C; ++c) {
    V top = hn::Set(d, kXNoMax), sum = hn::Zero(d);
    for (int32_t j = j0; j < j1; ++j) top = hn::Max(top, hn::Load(d, w.s + j * kPanel + c * kVec));
    for (int32_t j = j0; j < j1; ++j) {
      sum = hn::Add(sum, exp2_nonpositive(hn::Sub(hn::Load(d, w.s + j * kPanel + c * kVec), top)));
    }
    hn::Store(top, d, tops + c * kVec);
    hn::Store(sum, d, weights + c * kVec);
  }
  for (int32_t i = 0; i < lanes; ++i) {
    job.tops[w.out[lane + i] + block] = tops[i];
    job.weights[w.out[lane + i] + block] = weights[i];
  }
}

// One panel against cells [first, first + cells).
template <int C>
void score_panel(const XJob& job, const XScratch& w, int32_t lane, int64_t first, int32_t cells) {
  const XAttentionParams& p = *job.params;
  const int64_t depth = int64_t{p.stride} * p.kv.head_dim;
  const int32_t lanes = std::min(kPanel, job.lanes - lane), per_block = p.block_size / p.stride;
  const float* q = job.q + lane * depth;
  const int64_t low = w.cell[lane], high = w.cell[lane + lanes - 1];
  const auto seen = static_cast<int32_t>(p.causal ? std::min<int64_t>(cells, high + 1 - first) : cells);
  const int32_t stop = (seen + kKeys - 1) / kKeys * kKeys;
  score<C>(q, w.k, w.k_stride, 0, stop, depth, w.s);
  const bool diagonal = p.causal && first + seen > low;
  if (diagonal) {
    const auto from = static_cast<int32_t>(std::max<int64_t>(0, low - first)) / kKeys * kKeys;
    score<C>(q, w.k, w.k_stride, from, stop, depth / 2, w.s_half);
  }
  if (diagonal || (first + seen) * p.stride > job.strip->len) mask<C>(job, w, lane, first, seen);
  for (int32_t j = 0; j < seen; j += per_block) {
    weigh_block<C>(job, w, lane, lanes, j, std::min(seen, j + per_block), (first + j) / per_block);
  }
}

void score_job(const XJob& job, float* scratch) {
  const XAttentionParams& p = *job.params;
  ScratchCarver carver(scratch);
  const XScratch w = carve(carver, p.stride, p.kv.head_dim);
  fill_lanes(job, w);
  const int32_t per_block = p.block_size / p.stride, tile = xattention_tile_cells(p.stride, p.kv.head_dim);
  const int64_t all = (job.strip->len + p.stride - 1) / p.stride;
  const int64_t stop = std::min<int64_t>(all, int64_t{job.block_end} * per_block);
  for (int64_t first = int64_t{job.block_begin} * per_block; first < stop; first += tile) {
    const auto cells = static_cast<int32_t>(std::min<int64_t>(tile, stop - first));
    if (p.causal && first > w.cell[job.lanes - 1]) return;
    pack_keys(job, first, cells, w);
    for (int32_t lane = 0; lane < job.lanes; lane += kPanel) {
      const int32_t lanes = std::min(kPanel, job.lanes - lane);
      if (p.causal && first > w.cell[lane + lanes - 1]) continue;
      const int32_t vecs = (lanes + kVec - 1) / kVec;
      if (vecs == kVecs) {
        score_panel<kVecs>(job, w, lane, first, cells);
      } else if (vecs == 2) {
        score_panel<2>(job, w, lane, first, cells);
      } else {
        score_panel<1>(job, w, lane, first, cells);
      }
    }
  }
}

void sum_blocks(const float* tops, float* weights, int64_t row_stride, int32_t cells, int32_t blocks, float* sums) {
  const D d;
  std::fill(sums, sums + blocks, 0.0f);
  for (int32_t i = 0; i < cells; ++i, tops += row_stride, weights += row_stride) {
    const float top = *std::max_element(tops, tops + blocks);
    V total = hn::Zero(d);
    int32_t b = 0;
    for (; b + kVec <= blocks; b += kVec) {
      const V x = exp2_nonpositive(hn::Sub(hn::LoadU(d, tops + b), hn::Set(d, top)));
      const V share = hn::Mul(hn::LoadU(d, weights + b), x);
      hn::StoreU(share, d, weights + b);
      total = hn::Add(total, share);
    }
    float all = hn::GetLane(hn::SumOfLanes(d, total));
    for (; b < blocks; ++b) {
      weights[b] *= hn::GetLane(exp2_nonpositive(hn::Set(d, tops[b] - top)));
      all += weights[b];
    }
    if (all == 0.0f) continue;  // no cell of the row has a pair
    const float scale = 1.0f / all;
    for (b = 0; b < blocks; ++b) sums[b] += weights[b] * scale;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fovea::cpu {

HWY_EXPORT(pack_queries);
HWY_EXPORT(score_job);
HWY_EXPORT(sum_blocks);

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

void xattention_sum_blocks(const float* tops, float* weights, int64_t row_stride, int32_t cells, int32_t blocks,
                           float* sums) {
  HWY_DYNAMIC_DISPATCH(sum_blocks)(tops, weights, row_stride, cells, blocks, sums);
}

}  // namespace fovea::cpu
#endif
