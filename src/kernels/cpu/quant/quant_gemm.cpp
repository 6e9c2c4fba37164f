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
  const int more = code_bias(w.type);
  const __m512i add = _mm512_set1_epi8(static_cast<char>(more));
  alignas(64) uint32_t fours[kQuantPiece / 4];
  for (int i = 0; i < 4; ++i) _mm512_store_si512(fours + 16 * i, _mm512_add_epi8(_mm512_loadu_si512(piece.code + 64 * i), add));
  for (int i = 0; i < kQuantPiece / 4; ++i) std::memcpy(panel->code[i][row], fours + i, 4);
  const bool offsets = has_offsets(w.type);
  const int step = by_sixteen(w.type) ? 1 : 2;
  for (int i = 0; i * step < kQuantPiece / 16; ++i) {
    const float value = piece.value[i * step];
    panel->value[i][row] = value;
    panel->second[i][row] = offsets ? piece.offset[i * step] : -static_cast<float>(more) * value;
  }
}

struct Tile {
  const QuantPanel* panels;  // [pieces]
  int64_t pieces;
  const QuantisedX* x;  // its first row in the first piece; a piece has x_rows rows
  int64_t x_rows;
  __mmask16 low, high;  // outputs that exist
  const float* bias;    // from the first output on, or null
  float* out;
  int64_t out_stride;
};

template <int M, int kGroups>
void tile(const Tile& t) {
  constexpr int kSteps = kQuantPiece / 4 / kGroups;
  __m512 sum[M][2];
#pragma GCC unroll 6
  for (int m = 0; m < M; ++m) sum[m][0] = sum[m][1] = _mm512_setzero_ps();
  const QuantisedX* x = t.x;
  for (int64_t p = 0; p < t.pieces; ++p, x += t.x_rows) {
    const QuantPanel& panel = t.panels[p];
    for (int g = 0; g < kGroups; ++g) {
      __m512i acc[M][2];
#pragma GCC unroll 6
      for (int m = 0; m < M; ++m) acc[m][0] = acc[m][1] = _mm512_setzero_si512();
#pragma GCC unroll 8
      for (int s = 0; s < kSteps; ++s) {
        const int at = g * kSteps + s;
        const __m512i w0 = _mm512_load_si512(panel.code[at][0]), w1 = _mm512_load_si512(panel.code[at][16]);
#pragma GCC unroll 6
        for (int m = 0; m < M; ++m) {
          int32_t four;
          std::memcpy(&four, x[m].code + 4 * at, 4);
          const __m512i xm = _mm512_set1_epi32(four);
          acc[m][0] = _mm512_dpbusd_epi32(acc[m][0], w0, xm);
          acc[m][1] = _mm512_dpbusd_epi32(acc[m][1], w1, xm);
        }
      }
      const __m512 v0 = _mm512_load_ps(panel.value[g]), v1 = _mm512_load_ps(panel.value[g] + 16);
      const __m512 s0 = _mm512_load_ps(panel.second[g]), s1 = _mm512_load_ps(panel.second[g] + 16);
#pragma GCC unroll 6
      for (int m = 0; m < M; ++m) {
        const __m512 scale = _mm512_set1_ps(kGroups == 16 ? x[m].scale[g] : x[m].scale_of_32[g]);
        const __m512 of_x = _mm512_set1_ps(kGroups == 16 ? x[m].sum[g] : x[m].sum_of_32[g]);
        sum[m][0] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[m][0]), _mm512_mul_ps(v0, scale), sum[m][0]);
        sum[m][1] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[m][1]), _mm512_mul_ps(v1, scale), sum[m][1]);
        sum[m][0] = _mm512_fmadd_ps(s0, of_x, sum[m][0]);
        sum[m][1] = _mm512_fmadd_ps(s1, of_x, sum[m][1]);
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
template <int kGroups, int... M>
TileFn tile_of(int64_t m, std::integer_sequence<int, M...>) {
  constexpr TileFn table[] = {&tile<M + 1, kGroups>...};
  return table[m - 1];
}

__mmask16 first_lanes(int64_t n) { return static_cast<__mmask16>((1u << std::clamp<int64_t>(n, 0, 16)) - 1); }

}  // namespace

void quant_gemm(const QuantGemmSlice& s, QuantPanel* scratch) {
  FOVEA_CHECK(s.rows >= 1 && s.w.rows >= 1 && s.w.rows <= kQuantPanelRows && quant_gemv_takes(s.w.type));
  const int64_t pieces = quant_pieces(s.w.cols);
  for (int64_t p = 0; p < pieces; ++p) {
    const int64_t n = std::min(kQuantPiece, s.w.cols - p * kQuantPiece);
    if (s.w.rows < kQuantPanelRows) std::memset(static_cast<void*>(scratch + p), 0, sizeof(QuantPanel));
    for (int64_t row = 0; row < s.w.rows; ++row) pack_row(s.w, row, p * kQuantPiece, n, scratch + p);
  }
  const int64_t tiles = (s.rows + kTileX - 1) / kTileX;
  for (int64_t i = 0; i < tiles; ++i) {
    const int64_t row = s.rows * i / tiles, m = s.rows * (i + 1) / tiles - row;  // of near equal height
    const auto heights = std::make_integer_sequence<int, kTileX>();
    const TileFn fn = by_sixteen(s.w.type) ? tile_of<16>(m, heights) : tile_of<8>(m, heights);
    fn({scratch, pieces, s.packed + row, s.rows, first_lanes(s.w.rows), first_lanes(s.w.rows - 16), s.bias,
        s.out + row * s.out_stride, s.out_stride});
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
