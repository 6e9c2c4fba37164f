// The AMX engine, included once with the instructions (prefill_amx.cpp) and once with their emulation
// (tests).
//
// Rows of the score tiles are keys and columns are query rows (lanes): S^T = K Q^T takes K as the cache holds
// it, in place, and Q in pairs, packed once per job; O^T += V^T P^T takes V transposed, once per key tile,
// and P in pairs, as the softmax leaves it. The softmax is vertical: a lane's arithmetic does not know its
// neighbours.
#include <hwy/base.h>
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>

#include "base/check.h"
#include "kernels/common/convert.h"
#include "kernels/cpu/attention/prefill_amx.h"
#include "kernels/cpu/attention/prefill_scratch.h"

// The attributes and not the unit's flags: what the unit shares with others (inline functions, templates)
// stays runnable on any CPU. AMX itself needs none.
HWY_PUSH_ATTRIBUTES("avx2,fma,avx512f,avx512bw,avx512cd,avx512dq,avx512vl")
#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/attention/prefill_amx_rows.h"

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push  // g++ 12's own intrinsics start from a register that they leave undefined
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include "kernels/cpu/attention/prefill_bf16_inl.h"

namespace fovea::cpu {
namespace {

constexpr int32_t kTileKeys = 128;                  // two panels of scores and one of weights fit L1
constexpr int32_t kPanel = kPrefillAmxLanes.panel;  // two tiles side by side
constexpr int32_t kBlock = 32;                      // keys: two tiles one above the other; the depth of a weight tile
constexpr int32_t kBlocks = kTileKeys / kBlock;
constexpr int32_t kLanes = kPrefillAmxLanes.most;
constexpr int32_t kTileHalves = 512;  // bf16 elements of a tile

struct Scratch {
  uint16_t* q;         // [panels, wide / 32, 2] tiles [16 pairs, 16 lanes, 2]
  float* o;            // [panels, wide, kPanel]
  float* s;            // [2, kTileKeys, kPanel] scores of this panel and the next
  uint16_t* weights;   // [kBlocks, 2] tiles [16 pairs of keys, 16 lanes, 2]
  uint16_t* k_rows;    // [kTileKeys, wide] keys that cannot be read in place
  uint16_t* v_rows;    // [kTileKeys, wide] values that cannot be read in place
  uint16_t* v;         // [kBlocks, wide / 16] tiles [16 dims, 32 keys]
  uint16_t* v_exact;   // as v: the part that one row sees
  float* o_exact;      // [wide, kPanel]
  uint16_t* zero_row;  // [wide]
  float* m;            // [lanes] maximum, in units of log2
  float* l;            // [lanes] sum of weights
  float* k_pos;        // [kTileKeys]
  LaneView lanes;
};

int32_t wide_dim(int32_t dim) { return (dim + 31) / 32 * 32; }

Scratch carve(ScratchCarver& c, int32_t dim) {
  const int64_t wide = wide_dim(dim);
  Scratch w{};
  w.q = c.halves(kLanes * wide);
  w.o = c.floats(kLanes * wide);
  w.s = c.floats(2 * kTileKeys * kPanel);
  w.weights = c.halves(kTileKeys * kPanel);
  w.k_rows = c.halves(kTileKeys * wide);
  w.v_rows = c.halves(kTileKeys * wide);
  w.v = c.halves(kTileKeys * wide);
  w.v_exact = c.halves(kTileKeys * wide);
  w.o_exact = c.floats(wide * kPanel);
  w.zero_row = c.halves(wide);
  w.m = c.floats(kLanes);
  w.l = c.floats(kLanes);
  w.k_pos = c.floats(kTileKeys);
  w.lanes = {c.longs(kLanes), c.longs(kLanes), c.floats(kLanes), c.floats(kLanes)};
  return w;
}

// ---- K and V of a key tile -----------------------------------------------------------------------------------------

// Where the 16 rows of each half block of K and every row of V are read.
struct KeyTile {
  const uint16_t* k[kTileKeys / 16];
  int64_t k_stride[kTileKeys / 16];  // bytes
  const uint16_t* v[kTileKeys];
};

// Finds or converts keys [begin, end) of 16 that start at key `first` of the list. Only blocks that hold one
// of them are read; of these, K in place may bring keys that no row sees: what comes of it is masked.
void gather_chunk(const TileJob& job, int64_t base, int64_t first, int64_t begin, int64_t end, const Scratch& w, KeyTile* tile) {
  const KvView& kv = job.params->kv;
  const int32_t wide = wide_dim(kv.head_dim);
  const bool direct = kv.dtype == DType::bf16 && kv.layout == KvLayout::hnd && wide == kv.head_dim;
  const int64_t c = (first - base) / 16;
  tile->k[c] = w.k_rows + (first - base) * wide;
  tile->k_stride[c] = wide * 2;
  KeyRuns runs(job.keys, kv, job.seq, job.kv_head, begin, end);
  for (KeyRun run; runs.next(&run);) {
    const int64_t j = run.index - base;
    const int64_t chunk_offset = run.offset - (run.index - first);
    const bool in_place = direct && run.n == end - begin && chunk_offset >= 0 && chunk_offset + 16 <= kv.block_size;
    if (in_place) {
      tile->k[c] = static_cast<const uint16_t*>(kv.k) + run.base + chunk_offset * kv.tokens_apart();
      tile->k_stride[c] = kv.tokens_apart() * 2;
    }
    for (int32_t i = 0; i < run.n; ++i) {
      if (!in_place) convert_k(kv, run, i, w.k_rows + (j + i) * wide);
      if (direct) {
        tile->v[j + i] = static_cast<const uint16_t*>(kv.v) + run.base + (run.offset + i) * kv.tokens_apart();
      } else {
        convert_v(kv, run, i, w.v_rows + (j + i) * wide);
        tile->v[j + i] = w.v_rows + (j + i) * wide;
      }
      w.k_pos[j + i] = static_cast<float>(run.pos + i);
    }
  }
}

void gather_tile(const TileJob& job, int64_t base, int64_t begin, int64_t end, const Scratch& w, KeyTile* tile) {
  const int64_t first_block = (begin - base) / kBlock, stop_block = (end - base + kBlock - 1) / kBlock;
  for (int64_t j = first_block * kBlock; j < stop_block * kBlock; ++j) tile->v[j] = w.zero_row;
  for (int64_t first = base + first_block * kBlock; first < base + stop_block * kBlock; first += 16) {
    gather_chunk(job, base, first, std::max(begin, first), std::min(end, first + 16), w, tile);
  }
}

// Columns of 16 rows of 16 x 32 bits.
inline void transpose16(__m512i* r) {
  __m512i t[16];
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int j = 0; j < 4; ++j) {  // r[4 i + j] holds, in quarter q, column 4 q + j of rows 4 i to 4 i + 3
    const __m512i even_lo = _mm512_shuffle_i32x4(r[j], r[4 + j], 0x88);
    const __m512i odd_lo = _mm512_shuffle_i32x4(r[j], r[4 + j], 0xdd);
    const __m512i even_hi = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0x88);
    const __m512i odd_hi = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0xdd);
    t[j] = _mm512_shuffle_i32x4(even_lo, even_hi, 0x88);
    t[8 + j] = _mm512_shuffle_i32x4(even_lo, even_hi, 0xdd);
    t[4 + j] = _mm512_shuffle_i32x4(odd_lo, odd_hi, 0x88);
    t[12 + j] = _mm512_shuffle_i32x4(odd_lo, odd_hi, 0xdd);
  }
  for (int i = 0; i < 16; ++i) r[i] = t[i];
}

// Dims [dim, dim + 32) of the 32 keys whose rows are `rows`, to two tiles [16 dims, 32 keys] that follow each
// other.
inline void transpose_values(const uint16_t* const* rows, int32_t dim, uint16_t* tiles) {
  for (int half = 0; half < 2; ++half) {
    __m512i r[16];
    for (int i = 0; i < 16; ++i) {
      const __m512i a = _mm512_loadu_si512(rows[2 * i] + dim), b = _mm512_loadu_si512(rows[2 * i + 1] + dim);
      // Pairs of keys; quarter q holds dims 8 q + 4 half to 8 q + 4 half + 3.
      r[i] = half == 0 ? _mm512_unpacklo_epi16(a, b) : _mm512_unpackhi_epi16(a, b);
    }
    transpose16(r);
    for (int c = 0; c < 16; ++c) {
      _mm512_store_si512(tiles + (8 * (c / 4) + 4 * half + c % 4) * 32, r[c]);
    }
  }
}

void pack_values(const KeyTile& tile, int64_t begin, int64_t end, int32_t wide, uint16_t* v) {
  for (int64_t b = begin / kBlock; b * kBlock < end; ++b) {
    for (int32_t dim = 0; dim < wide; dim += 32) {
      transpose_values(tile.v + b * kBlock, dim, v + (b * (wide / 16) + dim / 16) * kTileHalves);
    }
  }
}

// Is there a V among keys [begin, end) that would show, were its weight 0?
bool has_nonfinite(const KeyTile& tile, int64_t begin, int64_t end, int32_t dim) {
  for (int64_t j = begin; j < end; ++j) {
    for (int32_t i = 0; i < dim; ++i) {
      if ((tile.v[j][i] & 0x7f80) == 0x7f80) return true;
    }
  }
  return false;
}

// ---- The stages of one panel and one key tile ----------------------------------------------------------------------

// Scores of the 32 keys of block b against a panel.
inline void score_block(const uint16_t* q, const KeyTile& tile, int32_t b, int32_t wide, float* s) {
  const uint16_t* k0 = tile.k[2 * b];
  const uint16_t* k1 = tile.k[2 * b + 1];
  const int64_t stride0 = tile.k_stride[2 * b], stride1 = tile.k_stride[2 * b + 1];
  FOVEA_TILE_ZERO(0);
  FOVEA_TILE_ZERO(1);
  FOVEA_TILE_ZERO(2);
  FOVEA_TILE_ZERO(3);
  for (int32_t dim = 0; dim < wide; dim += 32, q += 2 * kTileHalves) {
    FOVEA_TILE_LOAD(4, k0 + dim, stride0);
    FOVEA_TILE_LOAD(6, q, 64);
    FOVEA_TILE_LOAD(7, q + kTileHalves, 64);
    FOVEA_TILE_DOT(0, 4, 6);
    FOVEA_TILE_DOT(1, 4, 7);
    FOVEA_TILE_LOAD(5, k1 + dim, stride1);
    FOVEA_TILE_DOT(2, 5, 6);
    FOVEA_TILE_DOT(3, 5, 7);
  }
  float* to = s + b * kBlock * kPanel;
  FOVEA_TILE_STORE(0, to, kPanel * 4);
  FOVEA_TILE_STORE(1, to + 16, kPanel * 4);
  FOVEA_TILE_STORE(2, to + 16 * kPanel, kPanel * 4);
  FOVEA_TILE_STORE(3, to + 16 * kPanel + 16, kPanel * 4);
}

// o += V^T P^T over key blocks [b0, b1).
void accumulate(const uint16_t* weights, const uint16_t* v, int32_t b0, int32_t b1, int32_t wide, float* o) {
  for (int32_t dim = 0; dim < wide; dim += 32) {
    float* to = o + dim * kPanel;
    FOVEA_TILE_LOAD(0, to, kPanel * 4);
    FOVEA_TILE_LOAD(1, to + 16, kPanel * 4);
    FOVEA_TILE_LOAD(2, to + 16 * kPanel, kPanel * 4);
    FOVEA_TILE_LOAD(3, to + 16 * kPanel + 16, kPanel * 4);
    for (int32_t b = b0; b < b1; ++b) {
      const uint16_t* values = v + (b * (wide / 16) + dim / 16) * kTileHalves;
      const uint16_t* p = weights + b * 2 * kTileHalves;
      FOVEA_TILE_LOAD(4, values, 64);
      FOVEA_TILE_LOAD(6, p, 64);
      FOVEA_TILE_LOAD(7, p + kTileHalves, 64);
      FOVEA_TILE_DOT(0, 4, 6);
      FOVEA_TILE_DOT(1, 4, 7);
      FOVEA_TILE_LOAD(5, values + kTileHalves, 64);
      FOVEA_TILE_DOT(2, 5, 6);
      FOVEA_TILE_DOT(3, 5, 7);
    }
    FOVEA_TILE_STORE(0, to, kPanel * 4);
    FOVEA_TILE_STORE(1, to + 16, kPanel * 4);
    FOVEA_TILE_STORE(2, to + 16 * kPanel, kPanel * 4);
    FOVEA_TILE_STORE(3, to + 16 * kPanel + 16, kPanel * 4);
  }
}

// The same for a key tile that holds an infinity or a NaN some row must not multiply: each row of the panel
// with a copy of V in which the keys that it does not see are 0.
void accumulate_exact(const Scratch& w, const Panel& panel, int64_t base, int32_t wide, float* o) {
  const int32_t b0 = panel.j0 / kBlock, b1 = (panel.j1 + kBlock - 1) / kBlock;
  for (int32_t lane = 0, stop = 0; lane < kPanel; lane = stop) {
    const int64_t lo = w.lanes.lo[panel.lane + lane] - base, hi = w.lanes.hi[panel.lane + lane] - base;
    for (stop = lane; stop < kPanel; ++stop) {
      if (w.lanes.lo[panel.lane + stop] - base != lo || w.lanes.hi[panel.lane + stop] - base != hi) break;
    }
    for (int32_t b = b0; b < b1; ++b) {
      for (int32_t i = 0; i < wide * kBlock; ++i) {  // [wide / 16, 16, 32 keys]
        const int64_t j = b * kBlock + i % kBlock, at = static_cast<int64_t>(b) * kBlock * wide + i;
        w.v_exact[at] = j >= lo && j < hi ? w.v[at] : 0;
      }
    }
    std::copy(o, o + wide * kPanel, w.o_exact);
    accumulate(w.weights, w.v_exact, b0, b1, wide, w.o_exact);
    for (int32_t i = 0; i < wide; ++i) {
      for (int32_t c = lane; c < stop; ++c) o[i * kPanel + c] = w.o_exact[i * kPanel + c];
    }
  }
}

// Weights of the 32 keys of block b: 2^(s - m) in bf16 pairs; their float32 sum goes to l.
inline void weigh_block(const Scratch& w, int32_t lane, int32_t b, const float* s) {
  const __m512 m0 = _mm512_load_ps(w.m + lane), m1 = _mm512_load_ps(w.m + lane + 16);
  __m512 sum0 = _mm512_load_ps(w.l + lane), sum1 = _mm512_load_ps(w.l + lane + 16);
  uint16_t* to = w.weights + b * 2 * kTileHalves;
  s += b * kBlock * kPanel;
  for (int32_t j = 0; j < kBlock; j += 2, s += 2 * kPanel, to += 32) {
    const __m512 a0 = exp2_ps(_mm512_sub_ps(_mm512_load_ps(s), m0));
    const __m512 a1 = exp2_ps(_mm512_sub_ps(_mm512_load_ps(s + 16), m1));
    const __m512 b0 = exp2_ps(_mm512_sub_ps(_mm512_load_ps(s + kPanel), m0));
    const __m512 b1 = exp2_ps(_mm512_sub_ps(_mm512_load_ps(s + kPanel + 16), m1));
    sum0 = _mm512_add_ps(sum0, _mm512_add_ps(a0, b0));
    sum1 = _mm512_add_ps(sum1, _mm512_add_ps(a1, b1));
    _mm512_store_si512(to, pack_pair(a0, b0));
    _mm512_store_si512(to + kTileHalves, pack_pair(a1, b1));
  }
  _mm512_store_ps(w.l + lane, sum0);
  _mm512_store_ps(w.l + lane + 16, sum1);
}

// ---- A job ---------------------------------------------------------------------------------------------------------

// Takes q in, scaled so that the scores come out in units of log2 (or as the argument of tanh), rounded to
// bf16 once.
void load_queries(const TileJob& job, int32_t padded, const Scratch& w) {
  const AttentionParams& p = *job.params;
  const int32_t dim = p.kv.head_dim, wide = wide_dim(dim), lanes = job.rows * job.heads;
  const float k_scale = p.kv.k_scale ? p.kv.k_scale[job.kv_head] : 1.0f;
  const float scale = p.scale * k_scale * (p.soft_cap > 0 ? 1.0f / p.soft_cap : std::numbers::log2e_v<float>);
  for (int32_t lane = 0; lane < padded; ++lane) {
    const int64_t row = job.row + lane / job.heads;
    const int64_t from = (row * p.heads_per_row() + job.head + lane % job.heads) * dim;
    for (int32_t i = 0; i < wide; ++i) {
      const int64_t tile = (static_cast<int64_t>(lane / kPanel) * (wide / 32) + i / 32) * 2 + lane % kPanel / 16;
      const int64_t at = tile * kTileHalves + i % 32 / 2 * 32 + lane % 16 * 2 + i % 2;
      w.q[at] = lane < lanes && i < dim ? f32_to_bf16(load_as_f32(p.q, p.dtype, from + i) * scale) : 0;
    }
    w.m[lane] = kNoMax;
    w.l[lane] = 0.0f;
  }
  std::fill(w.o, w.o + static_cast<int64_t>(padded) * wide, 0.0f);
}

// One key tile against every panel. The tile products of the next panel's scores stand among the exponentials
// of this one's, so that the two units work at the same time.
void attend_tile(const TileJob& job, const Scratch& w, const KeyTile& tile, int64_t base, int32_t padded, bool exact) {
  const AttentionParams& p = *job.params;
  const int32_t wide = wide_dim(p.kv.head_dim);
  const auto view = [&](int32_t lane) { return panel_of(w.lanes, lane, kPanel, base, kTileKeys); };
  const auto score_from = [&](const Panel& panel, int32_t b) {
    const bool wanted = b >= panel.j0 / kBlock && b * kBlock < panel.j1;
    float* s = w.s + panel.lane / kPanel % 2 * kTileKeys * kPanel;
    if (wanted) score_block(w.q + static_cast<int64_t>(panel.lane) * wide, tile, b, wide, s);
  };
  Panel panel = view(0);
  for (int32_t b = 0; b < kBlocks; ++b) score_from(panel, b);
  while (panel.lane < padded) {
    Panel next{.lane = panel.lane + kPanel};
    if (next.lane < padded) next = view(next.lane);
    float* s = w.s + panel.lane / kPanel % 2 * kTileKeys * kPanel;
    float* o = w.o + static_cast<int64_t>(panel.lane) * wide;
    const bool any = panel.j0 < panel.j1;
    const int32_t b0 = panel.j0 / kBlock, b1 = any ? (panel.j1 + kBlock - 1) / kBlock : b0;
    const bool shaped = !panel.whole || panel.j0 % kBlock != 0 || panel.j1 % kBlock != 0;
    if (any && (shaped || p.soft_cap > 0 || p.alibi_slopes)) {
      shape_scores<2, kPanel>(p, w.lanes, w.k_pos, panel.lane, base, kTileKeys, b0 * kBlock, b1 * kBlock, s);
    }
    if (any) raise_maximum<2, kPanel>(s, b0 * kBlock, b1 * kBlock, wide, w.m + panel.lane, w.l + panel.lane, o);
    for (int32_t b = 0; b < kBlocks; ++b) {
      score_from(next, b);
      if (b >= b0 && b < b1) weigh_block(w, panel.lane, b, s);
    }
    if (any && exact) {
      accumulate_exact(w, panel, base, wide, o);
    } else if (any) {
      accumulate(w.weights, w.v, b0, b1, wide, o);
    }
    panel = next;
  }
}

void prefill_job_amx(const TileJob& job, float* scratch) {
  const int32_t dim = job.params->kv.head_dim, wide = wide_dim(dim), lanes = job.rows * job.heads;
  const int32_t padded = (lanes + kPanel - 1) / kPanel * kPanel;
  FOVEA_CHECK(padded <= kLanes);
  ScratchCarver carver(scratch);
  const Scratch w = carve(carver, dim);
  std::fill(w.zero_row, w.zero_row + wide, uint16_t{0});
  fill_lanes(job, padded, w.lanes);
  load_queries(job, padded, w);
  FOVEA_TILE_CONFIG();
  // Rows ascend in position: the first sees from the lowest key, the last up to the highest.
  const int64_t first = w.lanes.lo[0], last = w.lanes.hi[lanes - 1];
  const int64_t all_from = w.lanes.lo[lanes - 1], all_to = w.lanes.hi[0];  // keys that every row sees
  for (int64_t base = first / kTileKeys * kTileKeys; base < last; base += kTileKeys) {
    const int64_t begin = std::max(base, first), stop = std::min(base + kTileKeys, last);
    KeyTile tile;
    wait_for_keys(job, stop);
    gather_tile(job, base, begin, stop, w, &tile);
    const bool exact = has_nonfinite(tile, begin - base, std::clamp(all_from, begin, stop) - base, dim) ||
                       has_nonfinite(tile, std::clamp(all_to, begin, stop) - base, stop - base, dim);
    pack_values(tile, begin - base, stop - base, wide, w.v);
    attend_tile(job, w, tile, base, padded, exact);
  }
  FOVEA_TILE_RELEASE();
  store_results(job, {.o = w.o, .m = w.m, .l = w.l, .panel = kPanel, .dim_stride = wide});
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
