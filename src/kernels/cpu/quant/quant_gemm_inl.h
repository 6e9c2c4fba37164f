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

// 16 rows of 16 numbers of 32 bits, `stride` bytes apart: their columns.
inline void transpose(const void* from, int64_t stride, __m512i (&columns)[16]) {
  __m512i a[16], b[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    const auto row = [&](int r) { return _mm512_loadu_si512(static_cast<const char*>(from) + r * stride); };
    b[i] = _mm512_unpacklo_epi32(row(i), row(i + 1));
    b[i + 1] = _mm512_unpackhi_epi32(row(i), row(i + 1));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
    a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
    a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
    a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {  // of a[4r + i] part c is column 4c + i of rows 4r to 4r + 3
    const __m512i low = _mm512_shuffle_i32x4(a[i], a[4 + i], 0x44), low2 = _mm512_shuffle_i32x4(a[8 + i], a[12 + i], 0x44);
    const __m512i high = _mm512_shuffle_i32x4(a[i], a[4 + i], 0xee), high2 = _mm512_shuffle_i32x4(a[8 + i], a[12 + i], 0xee);
    columns[i] = _mm512_shuffle_i32x4(low, low2, 0x88);
    columns[4 + i] = _mm512_shuffle_i32x4(low, low2, 0xdd);
    columns[8 + i] = _mm512_shuffle_i32x4(high, high2, 0x88);
    columns[12 + i] = _mm512_shuffle_i32x4(high, high2, 0xdd);
  }
}

// Columns [begin, begin + n) of 16 rows of W from row `first` on into a half of a panel: zeros up to 256, and for rows that are missing.
inline void pack_half(const WeightView& w, int64_t first, int64_t begin, int64_t n, int half, QuantPanel* panel) {
  alignas(64) UnpackedPiece piece[16];
  for (int64_t i = 0; i < 16; ++i) {
    if (first + i < w.rows) unpack_codes(w, first + i, begin, n, piece + i);
    const int64_t there = first + i < w.rows ? n : 0;
    if (there == kQuantPiece) continue;
    std::memset(piece[i].code + there, 0, static_cast<size_t>(kQuantPiece - there));
    for (int64_t g = (there + 15) / 16; g < kQuantPiece / 16; ++g) piece[i].value[g] = piece[i].offset[g] = 0;
  }
  __m512i columns[16];
  for (int i = 0; i < kQuantPiece / 4; i += 16) {
    transpose(piece[0].code + 4 * i, sizeof(UnpackedPiece), columns);
#pragma GCC unroll 16
    for (int c = 0; c < 16; ++c) _mm512_store_si512(panel->code[i + c][half], columns[c]);
  }
  const int step = by_sixteen(w.type) ? 1 : 2;
  const auto place = [&](const float* from, float(&to)[kQuantPiece / 16][kQuantPanelRows]) {
    transpose(from, sizeof(UnpackedPiece), columns);
    for (int g = 0; g < kQuantPiece / 16; g += step) _mm512_store_si512(to[g / step] + half, columns[g]);
  };
  place(piece[0].value, panel->value);
  if (has_offsets(w.type)) place(piece[0].offset, panel->offset);
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
    for (int half = 0; half < kQuantPanelRows; half += 16) pack_half(w, half, begin, n, half, panels + p);
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
