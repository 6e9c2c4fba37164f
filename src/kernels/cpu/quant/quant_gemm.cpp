#include "kernels/cpu/quant/quant_gemm.h"

#include "base/check.h"
#include "kernels/cpu/quant/unpack.h"

#if defined(__x86_64__)
#include <hwy/base.h>
#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <utility>

#pragma GCC diagnostic push  // GCC 12's own headers leave registers undefined on purpose
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx512vnni,avx2,fma,f16c")

namespace fovea::cpu {
namespace {

// Rows of x in a register tile: 6 x 2 sums of integers and as many of floats leave 8 of 32 registers.
constexpr int kTileX = 6;

// Cache lines of the next tile's x in a piece, shared out to the panels of a whole slice.
constexpr int kAheadLines = kTileX * sizeof(QuantisedX) / 64 / (kQuantSliceRows / kQuantPanelRows) + 1;

// Scales belong to 16 columns; else to 32.
bool by_sixteen(WeightType type) { return type == WeightType::q2_k || type == WeightType::q3_k || type == WeightType::q6_k; }

// Row `row` of the slice into its place of a panel: columns [begin, begin + n) of W, zeros up to 256.
void pack_row(const WeightView& w, int64_t row, int64_t begin, int64_t n, QuantPanel* panel) {
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
void fill_less(int columns, QuantPanel* panel) {
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
void pack_panels(const WeightView& w, int64_t first, int64_t depth, QuantPanel* panels) {
  for (int64_t p = 0; p < depth; ++p) {
    const int64_t begin = (first + p) * kQuantPiece, n = std::min(kQuantPiece, w.cols - begin);
    if (w.rows < kQuantPanelRows) std::memset(static_cast<void*>(panels + p), 0, sizeof(QuantPanel));
    for (int64_t row = 0; row < w.rows; ++row) pack_row(w, row, begin, n, panels + p);
    fill_less(by_sixteen(w.type) ? 16 : 32, panels + p);
  }
}

struct Tile {
  const QuantPanel* panels;  // [pieces]
  int64_t pieces;
  const QuantisedX* x;  // its first row in the first piece; a piece has x_rows rows
  int64_t x_rows;
  const char* ahead;  // where a part of the next tile's x lies in the first piece, or null: kAheadLines to prefetch
  __mmask16 low, high;  // outputs that exist
  bool more;            // adds to the outputs
  const float* bias;    // from the first output on, or null
  float* out;
  int64_t out_stride;
};

template <int M, int kGroups, bool kOffsets>
void tile(const Tile& t) {
  constexpr int kSteps = kQuantPiece / 4 / kGroups;
  __m512 sum[M][2];
#pragma GCC unroll 6
  for (int m = 0; m < M; ++m) {
    const float* from = t.out + m * t.out_stride;
    sum[m][0] = t.more ? _mm512_maskz_loadu_ps(t.low, from) : _mm512_setzero_ps();
    sum[m][1] = t.more ? _mm512_maskz_loadu_ps(t.high, from + 16) : _mm512_setzero_ps();
  }
  const QuantisedX* x = t.x;
  for (int64_t p = 0; p < t.pieces; ++p, x += t.x_rows) {
    const QuantPanel& panel = t.panels[p];
    if (t.ahead) {  // x of all rows is larger than the L2 cache
      const char* at = t.ahead + p * t.x_rows * static_cast<int64_t>(sizeof(QuantisedX));
      for (int i = 0; i < kAheadLines; ++i) _mm_prefetch(at + 64 * i, _MM_HINT_T0);
    }
    for (int g = 0; g < kGroups; ++g) {
      __m512i acc[M][2];
#pragma GCC unroll 6
      for (int m = 0; m < M; ++m) {
        acc[m][0] = _mm512_load_si512(panel.less[g]);
        acc[m][1] = _mm512_load_si512(panel.less[g] + 16);
      }
#pragma GCC unroll 8
      for (int s = 0; s < kSteps; ++s) {
        const int at = g * kSteps + s;
        const __m512i w0 = _mm512_load_si512(panel.code[at][0]), w1 = _mm512_load_si512(panel.code[at][16]);
#pragma GCC unroll 6
        for (int m = 0; m < M; ++m) {
          int32_t four;
          std::memcpy(&four, x[m].code + 4 * at, 4);
          const __m512i xm = _mm512_set1_epi32(four);
          acc[m][0] = _mm512_dpbusd_epi32(acc[m][0], xm, w0);
          acc[m][1] = _mm512_dpbusd_epi32(acc[m][1], xm, w1);
        }
      }
      const __m512 v0 = _mm512_load_ps(panel.value[g]), v1 = _mm512_load_ps(panel.value[g] + 16);
#pragma GCC unroll 6
      for (int m = 0; m < M; ++m) {
        const __m512 scale = _mm512_set1_ps(kGroups == 16 ? x[m].scale[g] : x[m].scale_of_32[g]);
        sum[m][0] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[m][0]), _mm512_mul_ps(v0, scale), sum[m][0]);
        sum[m][1] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[m][1]), _mm512_mul_ps(v1, scale), sum[m][1]);
        if constexpr (kOffsets) {
          const __m512 of_x = _mm512_set1_ps(kGroups == 16 ? x[m].sum[g] : x[m].sum_of_32[g]);
          sum[m][0] = _mm512_fmadd_ps(_mm512_load_ps(panel.offset[g]), of_x, sum[m][0]);
          sum[m][1] = _mm512_fmadd_ps(_mm512_load_ps(panel.offset[g] + 16), of_x, sum[m][1]);
        }
      }
    }
  }
  const __m512 b0 = t.bias ? _mm512_maskz_loadu_ps(t.low, t.bias) : _mm512_setzero_ps();
  const __m512 b1 = t.bias ? _mm512_maskz_loadu_ps(t.high, t.bias + 16) : _mm512_setzero_ps();
#pragma GCC unroll 6
  for (int m = 0; m < M; ++m) {
    _mm512_mask_storeu_ps(t.out + m * t.out_stride, t.low, _mm512_add_ps(sum[m][0], b0));
    _mm512_mask_storeu_ps(t.out + m * t.out_stride + 16, t.high, _mm512_add_ps(sum[m][1], b1));
  }
}

using TileFn = void (*)(const Tile&);
template <int kGroups, bool kOffsets, int... M>
TileFn tile_of(int64_t m, std::integer_sequence<int, M...>) {
  constexpr TileFn table[] = {&tile<M + 1, kGroups, kOffsets>...};
  return table[m - 1];
}

TileFn choose_tile(WeightType type, int64_t m) {
  constexpr auto kHeights = std::make_integer_sequence<int, kTileX>();
  if (by_sixteen(type)) return has_offsets(type) ? tile_of<16, true>(m, kHeights) : tile_of<16, false>(m, kHeights);
  return has_offsets(type) ? tile_of<8, true>(m, kHeights) : tile_of<8, false>(m, kHeights);
}

__mmask16 first_lanes(int64_t n) { return static_cast<__mmask16>((1u << std::clamp<int64_t>(n, 0, 16)) - 1); }

}  // namespace

void quant_gemm(const QuantGemmSlice& s, QuantPanel* scratch) {
  FOVEA_CHECK(s.rows >= 1 && s.w.rows >= 1 && s.w.rows <= kQuantSliceRows && quant_gemv_takes(s.w.type));
  const int64_t pieces = quant_pieces(s.w.cols), tiles = (s.rows + kTileX - 1) / kTileX;
  for (int64_t first = 0; first < pieces; first += kQuantDepth) {
    const int64_t depth = std::min(kQuantDepth, pieces - first);
    for (int64_t n = 0; n < s.w.rows; n += kQuantPanelRows) {
      pack_panels(s.w.some_rows(n, std::min(kQuantPanelRows, s.w.rows - n)), first, depth, scratch + n / kQuantPanelRows * kQuantDepth);
    }
    for (int64_t i = 0; i < tiles; ++i) {
      const int64_t row = s.rows * i / tiles, m = s.rows * (i + 1) / tiles - row;  // of near equal height
      const TileFn fn = choose_tile(s.w.type, m);
      const QuantisedX* x = s.packed + first * s.rows + row;
      for (int64_t n = 0; n < s.w.rows; n += kQuantPanelRows) {
        fn({.panels = scratch + n / kQuantPanelRows * kQuantDepth,
            .pieces = depth,
            .x = x,
            .x_rows = s.rows,
            .ahead = i + 1 < tiles ? reinterpret_cast<const char*>(x + m) + n / kQuantPanelRows * kAheadLines * 64 : nullptr,
            .low = first_lanes(s.w.rows - n),
            .high = first_lanes(s.w.rows - n - 16),
            .more = first > 0,
            .bias = s.bias && first + depth == pieces ? s.bias + n : nullptr,
            .out = s.out + row * s.out_stride + n,
            .out_stride = s.out_stride});
      }
    }
  }
}

}  // namespace fovea::cpu

HWY_POP_ATTRIBUTES
#pragma GCC diagnostic pop

#else

namespace fovea::cpu {
void quant_gemm(const QuantGemmSlice&, QuantPanel*) { FOVEA_CHECK(false && "quant_gemm: not on this CPU"); }
}  // namespace fovea::cpu

#endif
