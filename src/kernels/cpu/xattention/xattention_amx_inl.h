// The estimate on AMX tiles, included once with the instructions (xattention_amx.cpp) and once with their emulation
// (tests). As in prefill_amx_inl.h: S^T = K Q^T, K as it lies (copied to rows of whole cells: pages lie anywhere), Q in
// pairs, packed once. What scores become is float32 and shared with the other engine (xattention_weigh).
#include <hwy/base.h>
#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <numbers>

#include "base/check.h"
#include "kernels/cpu/attention/prefill_scratch.h"
#include "kernels/cpu/xattention/xattention_amx.h"
#include "kernels/cpu/xattention/xattention_lanes.h"

// The attributes and not the unit's flags: what the unit shares with others stays runnable on any CPU.
HWY_PUSH_ATTRIBUTES("avx2,fma,avx512f,avx512bw,avx512cd,avx512dq,avx512vl")
#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/attention/prefill_amx_rows.h"

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push  // as in prefill_amx_inl.h
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
namespace fovea::cpu {
namespace {

constexpr int32_t kXPanel = 32;        // lanes: two tiles side by side
constexpr int32_t kXTileCells = 32;    // two tiles one above the other
constexpr int32_t kXTileHalves = 512;  // bf16 elements of a tile

struct XAmxScratch {
  uint16_t* k;  // [kXTileCells, k_stride]
  float* s;     // [kXTileCells, kXPanel]
  float* s_half;
  XLanes lanes;
  int64_t k_stride;  // elements
};

XAmxScratch carve_estimate(ScratchCarver& c, int32_t stride, int32_t dim) {
  XAmxScratch w{};
  w.k_stride = int64_t{stride} * dim + 32;  // an odd number of cache lines: rows spread over the sets of L1
  w.k = c.halves(kXTileCells * w.k_stride);
  w.s = c.floats(kXTileCells * kXPanel);
  w.s_half = c.floats(kXTileCells * kXPanel);
  w.lanes = carve_lanes(c, kXAmxLanes);
  return w;
}

// To [panels, depth / 32, 2] tiles of [16 pairs, 16 lanes, 2], scaled and rounded once. Queries that do not exist are 0.
void pack_estimate_queries(const XJob& job) {
  const XAttentionParams& p = *job.params;
  const int32_t dim = p.kv.head_dim;
  const int64_t depth = int64_t{p.stride} * dim;
  const float scale = xattention_scale(p, job.kv_head);
  auto* q = reinterpret_cast<uint16_t*>(job.q);
  const int32_t padded = (job.lanes + kXPanel - 1) / kXPanel * kXPanel;
  for (int32_t lane = 0; lane < padded; ++lane) {
    for (int32_t s = 0; s < p.stride; ++s) {
      const float* from = lane < job.lanes ? xattention_query(job, lane, s) : nullptr;
      for (int32_t e = 0; e < dim; ++e) {
        const int64_t i = int64_t{s} * dim + e;
        const int64_t tile = (lane / kXPanel * (depth / 32) + i / 32) * 2 + lane % kXPanel / 16;
        q[tile * kXTileHalves + i % 32 / 2 * 32 + lane % 16 * 2 + i % 2] = from ? f32_to_bf16(from[e] * scale) : 0;
      }
    }
  }
}

// Cells [first, first + cells) as bf16 rows. Keys that do not exist are not read; zero stands for them.
void gather_keys(const XJob& job, int64_t first, int32_t cells, const XAmxScratch& w) {
  const XAttentionParams& p = *job.params;
  const KvView& kv = p.kv;
  const int32_t dim = kv.head_dim;
  const bool copies = kv.dtype == DType::bf16 && kv.layout == KvLayout::hnd && kv.tokens_apart() == dim;
  const int64_t begin = first * p.stride, end = std::min(job.strip->len, (first + cells) * p.stride);
  const KeyList every;
  KeyRuns runs(every, kv, job.strip->seq, job.kv_head, begin, end);
  for (KeyRun run; runs.next(&run);) {
    for (int32_t i = 0; i < run.n;) {
      const int64_t pos = run.pos + i;
      uint16_t* to = w.k + (pos / p.stride - first) * w.k_stride + pos % p.stride * dim;
      if (!copies) {
        convert_k(kv, run, i++, to);
        continue;
      }
      const auto n = static_cast<int32_t>(std::min<int64_t>(run.n - i, p.stride - pos % p.stride));  // of this cell
      const auto* from = static_cast<const uint16_t*>(kv.k) + run.base + (run.offset + i) * int64_t{dim};
      std::memcpy(to, from, static_cast<size_t>(n) * dim * 2);
      i += n;
    }
  }
  const int64_t missing = (first + cells) * p.stride - end;
  uint16_t* row = w.k + (cells - 1) * w.k_stride;
  std::fill(row + (p.stride - missing) * dim, row + int64_t{p.stride} * dim, uint16_t{0});
}

// s[j] = q . k[j] over `depth` elements: 32 cells against 32 lanes. The rows beyond the keys hold what they held.
void score_cells(const uint16_t* q, const XAmxScratch& w, int64_t depth, float* s) {
  const uint16_t* k0 = w.k;
  const uint16_t* k1 = w.k + 16 * w.k_stride;
  FOVEA_TILE_ZERO(0);
  FOVEA_TILE_ZERO(1);
  FOVEA_TILE_ZERO(2);
  FOVEA_TILE_ZERO(3);
  for (int64_t i = 0; i < depth; i += 32, q += 2 * kXTileHalves) {
    FOVEA_TILE_LOAD(4, k0 + i, w.k_stride * 2);
    FOVEA_TILE_LOAD(6, q, 64);
    FOVEA_TILE_LOAD(7, q + kXTileHalves, 64);
    FOVEA_TILE_DOT(0, 4, 6);
    FOVEA_TILE_DOT(1, 4, 7);
    FOVEA_TILE_LOAD(5, k1 + i, w.k_stride * 2);
    FOVEA_TILE_DOT(2, 5, 6);
    FOVEA_TILE_DOT(3, 5, 7);
  }
  FOVEA_TILE_STORE(0, s, kXPanel * 4);
  FOVEA_TILE_STORE(1, s + 16, kXPanel * 4);
  FOVEA_TILE_STORE(2, s + 16 * kXPanel, kXPanel * 4);
  FOVEA_TILE_STORE(3, s + 16 * kXPanel + 16, kXPanel * 4);
}

void estimate_job_amx(const XJob& job, float* scratch) {
  const XAttentionParams& p = *job.params;
  const int64_t depth = int64_t{p.stride} * p.kv.head_dim;
  const int32_t per_block = p.block_size / p.stride;
  ScratchCarver carver(scratch);
  const XAmxScratch w = carve_estimate(carver, p.stride, p.kv.head_dim);
  fill_xlanes(job, kXAmxLanes, w.lanes);
  const int64_t all = (job.strip->len + p.stride - 1) / p.stride;
  const int64_t stop = std::min<int64_t>(all, int64_t{job.block_end} * per_block);
  FOVEA_TILE_CONFIG();
  for (int64_t first = int64_t{job.block_begin} * per_block; first < stop; first += kXTileCells) {
    if (p.causal && first > w.lanes.cell[job.lanes - 1]) break;
    const auto cells = static_cast<int32_t>(std::min<int64_t>(kXTileCells, stop - first));
    gather_keys(job, first, cells, w);
    for (int32_t lane = 0; lane < job.lanes; lane += kXPanel) {
      const XPanelView view = xattention_panel(job, w.lanes, lane, std::min(kXPanel, job.lanes - lane), first, cells);
      if (view.seen <= 0) continue;
      const uint16_t* q = reinterpret_cast<const uint16_t*>(job.q) + lane * depth;
      score_cells(q, w, depth, w.s);
      if (view.diagonal) score_cells(q, w, depth / 2, w.s_half);
      xattention_weigh(job, w.lanes, view, w.s, w.s_half, kXPanel);
    }
  }
  FOVEA_TILE_RELEASE();
}

size_t estimate_scratch(int32_t stride, int32_t dim) {
  ScratchCarver counter(nullptr);
  carve_estimate(counter, stride, dim);
  return counter.used();
}

int64_t estimate_query_floats(int32_t lanes, int64_t depth) { return (lanes + kXPanel - 1) / kXPanel * kXPanel * depth / 2; }

}  // namespace
}  // namespace fovea::cpu
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
HWY_POP_ATTRIBUTES
