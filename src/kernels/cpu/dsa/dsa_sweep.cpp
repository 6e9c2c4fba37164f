#include "kernels/cpu/dsa/dsa_sweep.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "base/check.h"
#include "kernels/common/convert.h"

#include "kernels/cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/dsa/dsa_sweep.cpp"
#include <hwy/foreach_target.h>
// foreach_target first: it compiles this file once per instruction set
#include <hwy/highway.h>

#include "kernels/cpu/dsa/dsa_candidates_inl.h"
#include "kernels/cpu/dsa/dsa_panel_inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Rows of q in a register tile, a row being one head of one token: with 3 vectors of keys 24 sums of 32 registers, 12 of 16.
#if HWY_TARGET == HWY_AVX3
constexpr int kTileRows = 8;
#else
constexpr int kTileRows = 4;
#endif

// Heads as a tile takes them: a power of two up to kTileRows, or a multiple of kTileRows. What is added is zero, and adds
// exactly nothing to a score.
int32_t padded_heads(int32_t heads) {
  if (heads <= kTileRows) return static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(heads)));
  return (heads + kTileRows - 1) / kTileRows * kTileRows;
}
int32_t heads_at_once(int32_t padded) { return std::min(padded, kTileRows); }
int32_t tokens_at_once(int32_t padded) { return kTileRows / heads_at_once(padded); }

struct Tile {
  const float* q;        // [dim][rows of the tile]
  const float* weights;  // [rows of the tile]
  const float* panel;    // [dim][kPanel]
  int32_t dim;
  bool first;     // of the token's groups of heads: scores start at 0
  float* scores;  // [tokens][kPanel]
};

// Not Max, of which one cannot say what it makes of a NaN: a NaN stays.
HWY_INLINE V relu(V x) { return hn::IfThenZeroElse(hn::Lt(x, hn::Zero(D())), x); }

// kTokens rows of kHeads heads: products of 3 vectors of keys, then relu, weight and the sum over the heads.
template <int kTokens, int kHeads>
void score_tile(const Tile& t) {
  constexpr int M = kTokens * kHeads;
  const D d;
  V sum[M][3];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) sum[m][0] = sum[m][1] = sum[m][2] = hn::Zero(d);
  const float* q = t.q;
  const float* panel = t.panel;
  for (int32_t i = 0; i < t.dim; ++i, q += M, panel += kPanel) {
    const V k0 = hn::LoadU(d, panel), k1 = hn::LoadU(d, panel + kLanes), k2 = hn::LoadU(d, panel + 2 * kLanes);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const V x = hn::Set(d, q[m]);
      sum[m][0] = hn::MulAdd(x, k0, sum[m][0]);
      sum[m][1] = hn::MulAdd(x, k1, sum[m][1]);
      sum[m][2] = hn::MulAdd(x, k2, sum[m][2]);
    }
  }
  const V zero = hn::Zero(d);
#pragma GCC unroll 8
  for (int token = 0; token < kTokens; ++token) {
    float* out = t.scores + token * kPanel;
    V score[3] = {zero, zero, zero};
    if (!t.first) {
#pragma GCC unroll 3
      for (int v = 0; v < 3; ++v) score[v] = hn::LoadU(d, out + v * kLanes);
    }
#pragma GCC unroll 8
    for (int h = 0; h < kHeads; ++h) {
      const V w = hn::Set(d, t.weights[token * kHeads + h]);
#pragma GCC unroll 3
      for (int v = 0; v < 3; ++v) score[v] = hn::MulAdd(w, relu(sum[token * kHeads + h][v]), score[v]);
    }
#pragma GCC unroll 3
    for (int v = 0; v < 3; ++v) hn::StoreU(score[v], d, out + v * kLanes);
  }
}

using TileFn = void (*)(const Tile&);
template <int kHeads, int... kTokens>
TileFn tile_of(int32_t tokens, std::integer_sequence<int, kTokens...>) {
  constexpr TileFn table[] = {&score_tile<kTokens + 1, kHeads>...};
  return table[tokens - 1];
}
TileFn tile_of(int32_t tokens, int32_t heads) {
  switch (heads) {
    case 1:
      return tile_of<1>(tokens, std::make_integer_sequence<int, kTileRows>());
    case 2:
      return tile_of<2>(tokens, std::make_integer_sequence<int, kTileRows / 2>());
    case 4:
      return tile_of<4>(tokens, std::make_integer_sequence<int, kTileRows / 4>());
    default:
      return tile_of<kTileRows>(tokens, std::make_integer_sequence<int, 1>());
  }
}

// q and weights as the tiles read them: tile after tile, each [dim][rows of the tile] and [rows of the tile].
void pack_queries(const IndexSweep& s, int32_t heads, float* q, float* weights) {
  const int32_t group = heads_at_once(heads), tokens = tokens_at_once(heads), dim = s.keys.dim;
  for (int32_t row = 0; row < s.rows; row += tokens) {
    const int32_t here = std::min(tokens, s.rows - row);
    for (int32_t h0 = 0; h0 < heads; h0 += group) {
      const int32_t tile_rows = here * group;
      for (int32_t m = 0; m < tile_rows; ++m) {
        const int32_t h = h0 + m % group;
        const int64_t from = int64_t{row + m / group} * s.heads + h;
        *weights++ = h < s.heads ? s.weights[from] : 0.0f;
        for (int32_t i = 0; i < dim; ++i) q[i * tile_rows + m] = h < s.heads ? s.q[from * dim + i] : 0.0f;
      }
      q += int64_t{tile_rows} * dim;
    }
  }
}

// Scores of every row that sees the panel's first key.
void score_panel(const IndexSweep& s, int32_t heads, int32_t first, const float* q, const float* weights, const float* panel,
                 float* scores) {
  const int32_t group = heads_at_once(heads), tokens = tokens_at_once(heads), dim = s.keys.dim;
  for (int32_t row = 0; row < s.rows; row += tokens) {
    const int32_t here = std::min(tokens, s.rows - row);
    const bool seen = *std::max_element(s.row_len + row, s.row_len + row + here) > first;
    const TileFn tile = tile_of(here, group);
    for (int32_t h0 = 0; h0 < heads; h0 += group) {
      if (seen) tile({q, weights, panel, dim, h0 == 0, scores + int64_t{row} * kPanel});
      q += int64_t{here} * group * dim;
      weights += here * group;
    }
  }
}

// A row's scores of keys [first, first + valid): into its candidates or its logits.
void take_scores(const IndexSweep& s, int32_t row, int32_t first, int32_t valid, const float* scales, float* scores) {
  if (s.keys.precision == IndexPrecision::fp8) {
    const D d;
    for (int32_t v = 0; v < kPanel; v += kLanes)
      hn::StoreU(hn::Mul(hn::LoadU(d, scores + v), hn::LoadU(d, scales + v)), d, scores + v);
  }
  if (s.logits) {
    std::memcpy(s.logits + row * s.logits_stride + first, scores, sizeof(float) * valid);
    return;
  }
  add_candidates(s.candidates[row], scores, valid, first, s.topk);
}

void index_sweep_target(const IndexSweep& s) {
  const int32_t heads = padded_heads(s.heads), dim = s.keys.dim;
  float* panel = s.scratch;
  float* scales = panel + int64_t{dim} * kIndexPanel;
  float* scores = scales + kIndexPanel;
  float* weights = scores + int64_t{s.rows} * kIndexPanel;
  float* q = weights + int64_t{s.rows} * heads;
  pack_queries(s, heads, q, weights);
  const int32_t end = std::min(s.end, *std::max_element(s.row_len, s.row_len + s.rows));
  for (int32_t first = s.begin; first < end; first += kPanel) {
    const int32_t keys = std::min(kPanel, end - first);
    pack_panel(s.keys, s.seq, first, keys, panel, scales);
    score_panel(s, heads, first, q, weights, panel, scores);
    for (int32_t row = 0; row < s.rows; ++row) {
      const int32_t valid = std::min(keys, s.row_len[row] - first);
      if (valid > 0) take_scores(s, row, first, valid, scales, scores + int64_t{row} * kPanel);
    }
  }
}

void index_keep_target(IndexCandidates& candidates, int32_t topk) { keep_best(candidates, topk, topk); }

}  // namespace fovea::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fovea::cpu {

HWY_EXPORT(index_sweep_target);
HWY_EXPORT(index_keep_target);

int64_t index_scratch_floats(int32_t rows, int32_t heads, int32_t dim) {
  const int64_t padded = std::max<int64_t>((heads + 7) / 8 * 8, 8);
  return int64_t{dim} * kIndexPanel + kIndexPanel + rows * (kIndexPanel + padded * (dim + 1));
}

void index_sweep(const IndexSweep& sweep) {
  FOVEA_CHECK(sweep.rows >= 1 && (sweep.logits != nullptr) != (sweep.candidates != nullptr));
  HWY_DYNAMIC_DISPATCH(index_sweep_target)(sweep);
}

void index_keep(IndexCandidates& candidates, int32_t topk) { HWY_DYNAMIC_DISPATCH(index_keep_target)(candidates, topk); }

}  // namespace fovea::cpu
#endif
