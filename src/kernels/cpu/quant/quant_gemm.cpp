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
#include "kernels/cpu/quant/quant_gemm_inl.h"

namespace fovea::cpu {
namespace {

// Rows of x in a register tile: 6 x 2 sums of integers and as many of floats leave 8 of 32 registers.
constexpr int kTileX = 6;

template <int M, int kGroups, bool kOffsets>
void tile(const Tile& t) {
  constexpr int kSteps = kQuantPiece / 4 / kGroups;
  __m512 sum[M][2];
#pragma GCC unroll 6
  for (int m = 0; m < M; ++m) begin_row(t, m, sum[m]);
  const QuantisedX* x = t.x;
  for (int64_t p = 0; p < t.pieces; ++p, x += t.x_rows) {
    const QuantPanel& panel = t.panels[p];
    ask_ahead<kTileX>(t, p);
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
      for (int m = 0; m < M; ++m) add_scaled<kGroups, kOffsets>(acc[m][0], acc[m][1], panel, v0, v1, x[m], g, sum[m]);
    }
  }
#pragma GCC unroll 6
  for (int m = 0; m < M; ++m) end_row(t, m, sum[m]);
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

}  // namespace

void quant_gemm(const QuantGemmSlice& s, QuantPanel* scratch) {
  const int64_t tiles = (s.rows + kTileX - 1) / kTileX;
  const auto near_equal = [&](int64_t i) {
    const int64_t begin = s.rows * i / tiles;
    return TileRows{begin, s.rows * (i + 1) / tiles - begin, 0};
  };
  in_tiles<kTileX>(s, scratch, true, tiles, near_equal, [&](int64_t m, const Tile& t) { choose_tile(s.w.type, m)(t); });
}

}  // namespace fovea::cpu

HWY_POP_ATTRIBUTES
#pragma GCC diagnostic pop

#else

namespace fovea::cpu {
void quant_gemm(const QuantGemmSlice&, QuantPanel*) { FOVEA_CHECK(false && "quant_gemm: not on this CPU"); }
}  // namespace fovea::cpu

#endif
