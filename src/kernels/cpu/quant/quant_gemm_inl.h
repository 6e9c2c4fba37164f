// What the forms of quant_gemm share: panels of W, tiles of outputs, and how their sums are scaled, so that all have the same bits. Each
// includes it where it has switched its instructions on, and has its own copy.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu/quant/quant_gemm.h"
#include "kernels/cpu/quant/unpack.h"

#define FOVEA_INLINE inline __attribute__((always_inline))

namespace fovea::cpu {
namespace {

// Scales belong to 16 columns; else to 32.
inline bool by_sixteen(WeightType type) { return type == WeightType::q2_k || type == WeightType::q3_k || type == WeightType::q6_k; }

// Row `row` of the slice into its place of a panel: columns [begin, begin + n) of W, zeros up to 256.
inline void pack_row(const WeightView& w, int64_t row, int64_t begin, int64_t n, QuantPanel* panel) {
  UnpackedPiece piece;
  unpack_codes(w, row, begin, n, &piece);
  if (n < kQuantPiece) {
    std::memset(piece.code + n, 0, static_cast<size_t>(kQuantPiece - n));
    for (int64_t i = (n + 15) / 16; i < kQuantPiece / 16; ++i) piece.value[i] = piece.offset[i] = 0;
  }
  for (int i = 0; i < kQuantPiece / 4; ++i) std::memcpy(panel->code[i][row], piece.code + 4 * i, 4);
  const bool offsets = has_offsets(w.type);
  const int step = by_sixteen(w.type) ? 1 : 2;
  for (int i = 0; i * step < kQuantPiece / 16; ++i) {
    panel->value[i][row] = piece.value[i * step];
    if (offsets) panel->offset[i][row] = piece.offset[i * step];
  }
}

// What the bias of x adds to sums of `columns` products, from the codes.
inline void fill_less(int columns, QuantPanel* panel) {
  for (int g = 0; g < kQuantPiece / columns; ++g) {
    for (int half = 0; half < kQuantPanelRows; half += 16) {
      __m512i sum = _mm512_setzero_si512();
      for (int s = g * columns / 4; s < (g + 1) * columns / 4; ++s) {
        sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(1), _mm512_load_si512(panel->code[s][half]));
      }
      _mm512_store_si512(panel->less[g] + half, _mm512_mullo_epi32(sum, _mm512_set1_epi32(-kXBias)));
    }
  }
}

// Pieces [first, first + depth) of at most 32 rows of W.
inline void pack_panels(const WeightView& w, int64_t first, int64_t depth, bool biased, QuantPanel* panels) {
  for (int64_t p = 0; p < depth; ++p) {
    const int64_t begin = (first + p) * kQuantPiece, n = std::min(kQuantPiece, w.cols - begin);
    if (w.rows < kQuantPanelRows) std::memset(static_cast<void*>(panels + p), 0, sizeof(QuantPanel));
    for (int64_t row = 0; row < w.rows; ++row) pack_row(w, row, begin, n, panels + p);
    if (biased) fill_less(by_sixteen(w.type) ? 16 : 32, panels + p);
  }
}

struct Tile {
  const QuantPanel* panels;  // [pieces]
  int64_t pieces;
  const QuantisedX* x;  // its first row in the first piece; a piece has x_rows rows
  int64_t x_rows;
  const char* ahead;    // where a part of the next tile's x lies in the first piece, or null: ahead_lines() to prefetch
  __mmask16 low, high;  // outputs that exist
  int64_t done;         // rows that the tile before has written already
  bool more;            // adds to the outputs
  const float* bias;    // from the first output on, or null
  float* out;
  int64_t out_stride;
};

// Cache lines of the next tile's `rows` of x in a piece, shared out to the panels of a whole slice.
constexpr int ahead_lines(int rows) {
  return rows * static_cast<int>(sizeof(QuantisedX)) / 64 / (kQuantSliceRows / kQuantPanelRows) + 1;
}

// Asks for them, where x of all rows is larger than the L2 cache.
template <int kRows>
FOVEA_INLINE void ask_ahead(const Tile& t, int64_t piece) {
  if (!t.ahead) return;
  const char* at = t.ahead + piece * t.x_rows * static_cast<int64_t>(sizeof(QuantisedX));
  for (int i = 0; i < ahead_lines(kRows); ++i) _mm_prefetch(at + 64 * i, _MM_HINT_T0);
}

FOVEA_INLINE void begin_row(const Tile& t, int m, __m512 (&sum)[2]) {
  const float* from = t.out + m * t.out_stride;
  sum[0] = t.more ? _mm512_maskz_loadu_ps(t.low, from) : _mm512_setzero_ps();
  sum[1] = t.more ? _mm512_maskz_loadu_ps(t.high, from + 16) : _mm512_setzero_ps();
}

// Adds the products of group g of a piece of one row of x with 32 of W, whose values are v0 and v1.
template <int kGroups, bool kOffsets>
FOVEA_INLINE void add_scaled(__m512i products0, __m512i products1, const QuantPanel& panel, __m512 v0, __m512 v1,
                             const QuantisedX& x, int g, __m512 (&sum)[2]) {
  const __m512 scale = _mm512_set1_ps(kGroups == 16 ? x.scale[g] : x.scale_of_32[g]);
  sum[0] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(products0), _mm512_mul_ps(v0, scale), sum[0]);
  sum[1] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(products1), _mm512_mul_ps(v1, scale), sum[1]);
  if constexpr (kOffsets) {
    const __m512 of_x = _mm512_set1_ps(kGroups == 16 ? x.sum[g] : x.sum_of_32[g]);
    sum[0] = _mm512_fmadd_ps(_mm512_load_ps(panel.offset[g]), of_x, sum[0]);
    sum[1] = _mm512_fmadd_ps(_mm512_load_ps(panel.offset[g] + 16), of_x, sum[1]);
  }
}

FOVEA_INLINE void end_row(const Tile& t, int m, const __m512 (&sum)[2]) {
  if (m < t.done) return;
  const __m512 b0 = t.bias ? _mm512_maskz_loadu_ps(t.low, t.bias) : _mm512_setzero_ps();
  const __m512 b1 = t.bias ? _mm512_maskz_loadu_ps(t.high, t.bias + 16) : _mm512_setzero_ps();
  _mm512_mask_storeu_ps(t.out + m * t.out_stride, t.low, _mm512_add_ps(sum[0], b0));
  _mm512_mask_storeu_ps(t.out + m * t.out_stride + 16, t.high, _mm512_add_ps(sum[1], b1));
}

inline __mmask16 first_lanes(int64_t n) { return static_cast<__mmask16>((1u << std::clamp<int64_t>(n, 0, 16)) - 1); }

// Rows of x in a tile: [begin, begin + count), of which the tile before has `done`.
struct TileRows {
  int64_t begin, count, done;
};

// Unpacks a slice and calls multiply(rows in a tile, tile). rows_of(i): of tile i. biased: as x is.
template <int kMostRows, typename RowsOf, typename Multiply>
void in_tiles(const QuantGemmSlice& s, QuantPanel* scratch, bool biased, int64_t tiles, const RowsOf& rows_of,
              const Multiply& multiply) {
  FOVEA_CHECK(s.rows >= 1 && s.w.rows >= 1 && s.w.rows <= kQuantSliceRows && quant_gemv_takes(s.w.type));
  const int64_t pieces = quant_pieces(s.w.cols);
  for (int64_t first = 0; first < pieces; first += kQuantDepth) {
    const int64_t depth = std::min(kQuantDepth, pieces - first);
    for (int64_t n = 0; n < s.w.rows; n += kQuantPanelRows) {
      pack_panels(s.w.some_rows(n, std::min(kQuantPanelRows, s.w.rows - n)), first, depth, biased,
                  scratch + n / kQuantPanelRows * kQuantDepth);
    }
    const QuantisedX* x = s.packed + first * s.rows;
    for (int64_t i = 0; i < tiles; ++i) {
      const TileRows rows = rows_of(i);
      for (int64_t n = 0; n < s.w.rows; n += kQuantPanelRows) {
        const int64_t ahead = n / kQuantPanelRows * ahead_lines(kMostRows) * 64;
        multiply(rows.count, {.panels = scratch + n / kQuantPanelRows * kQuantDepth,
                              .pieces = depth,
                              .x = x + rows.begin,
                              .x_rows = s.rows,
                              .ahead = i + 1 < tiles ? reinterpret_cast<const char*>(x + rows_of(i + 1).begin) + ahead : nullptr,
                              .low = first_lanes(s.w.rows - n),
                              .high = first_lanes(s.w.rows - n - 16),
                              .done = rows.done,
                              .more = first > 0,
                              .bias = s.bias && first + depth == pieces ? s.bias + n : nullptr,
                              .out = s.out + rows.begin * s.out_stride + n,
                              .out_stride = s.out_stride});
      }
    }
  }
}

}  // namespace
}  // namespace fovea::cpu
