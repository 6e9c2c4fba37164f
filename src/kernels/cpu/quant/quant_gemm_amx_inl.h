// The body of quant_gemm_amx(), over the tile instructions of amx_tiles.h: compiled once for the hardware and once, in the tests, over
// their emulation.
//
// A panel of W is the B operand as it is: a row of it holds four neighbours of 16 rows of W. x is the A operand as it is: its rows lie
// sizeof(QuantisedX) apart. Scales belong to 32 columns (or 16), so a product takes no more of them, half (or a quarter) of what a tile
// holds, and its integers go through the L1 cache to be scaled by vectors. 12 rows of x by 32 of W: their sums are 24 of the 32 vectors,
// and each A tile serves two products. docs/linear.md has the cycles, and what else was tried.
#pragma once

#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/quant/quant_gemm_inl.h"

namespace fovea::cpu {
namespace {

constexpr int kTileX = kQuantAmxRows;

// Tiles: 0 and 1 sums of an even group of columns, 2 and 3 of an odd one, 4 and 5 x, 6 and 7 W.
constexpr TileConfig int8_tiles(int columns) {
  TileConfig c;
  for (int t = 0; t < 6; ++t) c.rows[t] = kTileX;
  for (int t = 4; t < 6; ++t) c.row_bytes[t] = static_cast<uint16_t>(columns);
  for (int t = 6; t < 8; ++t) c.rows[t] = static_cast<uint8_t>(columns / 4);
  return c;
}
template <int kGroups>
alignas(64) constexpr TileConfig kInt8Tiles = int8_tiles(kQuantPiece / kGroups);

struct alignas(64) Products {
  int32_t of[2][kTileX][16];
};

// Group g of a tile, counted through its pieces.
template <int kGroups>
struct Group {
  FOVEA_INLINE Group(const Tile& t, int64_t g)
      : in_piece(static_cast<int>(g % kGroups)), panel(t.panels[g / kGroups]), x(t.x + g / kGroups * t.x_rows) {}
  const int in_piece;
  const QuantPanel& panel;
  const QuantisedX* const x;
};

// Tile numbers are part of the instructions.
#define FOVEA_MULTIPLY(sums, more_sums, of_x)     \
  do {                                            \
    FOVEA_TILE_LOAD(of_x, x, sizeof(QuantisedX)); \
    FOVEA_TILE_ZERO(sums);                        \
    FOVEA_TILE_ZERO(more_sums);                   \
    FOVEA_TILE_LOAD(6, w, sizeof(*w));            \
    FOVEA_TILE_DOT_INT8(sums, of_x, 6);           \
    FOVEA_TILE_LOAD(7, w[0] + 16, sizeof(*w));    \
    FOVEA_TILE_DOT_INT8(more_sums, of_x, 7);      \
  } while (0)

template <bool kOdd, int kGroups>
FOVEA_INLINE void multiply(const Group<kGroups>& g) {
  constexpr int kColumns = kQuantPiece / kGroups;
  const int8_t* x = g.x->code + g.in_piece * kColumns;
  const auto* w = g.panel.code + g.in_piece * kColumns / 4;
  if constexpr (kOdd) {
    FOVEA_MULTIPLY(2, 3, 5);
  } else {
    FOVEA_MULTIPLY(0, 1, 4);
  }
}
#undef FOVEA_MULTIPLY

template <bool kOdd>
FOVEA_INLINE void store(Products* to) {
  if constexpr (kOdd) {
    FOVEA_TILE_STORE(2, to->of[0], 64);
    FOVEA_TILE_STORE(3, to->of[1], 64);
  } else {
    FOVEA_TILE_STORE(0, to->of[0], 64);
    FOVEA_TILE_STORE(1, to->of[1], 64);
  }
}

template <int kGroups, bool kOffsets>
FOVEA_INLINE void add_group(const Products& products, const Group<kGroups>& g, __m512 (&sum)[kTileX][2]) {
  const int i = g.in_piece;
  const __m512 v0 = _mm512_load_ps(g.panel.value[i]), v1 = _mm512_load_ps(g.panel.value[i] + 16);
#pragma GCC unroll 12
  for (int m = 0; m < kTileX; ++m) {
    add_scaled<kGroups, kOffsets>(_mm512_load_si512(products.of[0][m]), _mm512_load_si512(products.of[1][m]), g.panel, v0, v1,
                                  g.x[m], i, sum[m]);
  }
}

// While a group is multiplied, the one before is stored and the one before that is scaled: a product takes 52 cycles to come out.
template <int kGroups, bool kOffsets>
void tile(const Tile& t) {
  static_assert(kGroups % 2 == 0);
  using At = Group<kGroups>;
  const int64_t groups = t.pieces * kGroups;
  Products even, odd;
  __m512 sum[kTileX][2];
#pragma GCC unroll 12
  for (int m = 0; m < kTileX; ++m) begin_row(t, m, sum[m]);
  multiply<false>(At(t, 0));
  for (int64_t g = 0; g < groups; g += 2) {
    if (g % kGroups == 0) ask_ahead<kTileX>(t, g / kGroups);
    multiply<true>(At(t, g + 1));
    store<false>(&even);
    if (g > 0) add_group<kGroups, kOffsets>(odd, At(t, g - 1), sum);
    if (g + 2 < groups) multiply<false>(At(t, g + 2));
    store<true>(&odd);
    add_group<kGroups, kOffsets>(even, At(t, g), sum);
  }
  add_group<kGroups, kOffsets>(odd, At(t, groups - 1), sum);
#pragma GCC unroll 12
  for (int m = 0; m < kTileX; ++m) end_row(t, m, sum[m]);
}

inline void quant_gemm_tiles(const QuantGemmSlice& s, QuantPanel* scratch) {
  FOVEA_CHECK(s.rows >= kTileX);
  const int64_t tiles = (s.rows + kTileX - 1) / kTileX;
  // All are whole: the last has rows of the one before.
  const auto whole = [&](int64_t i) {
    const int64_t begin = std::min(i * kTileX, s.rows - kTileX);
    return TileRows{begin, kTileX, i * kTileX - begin};
  };
  const bool sixteen = by_sixteen(s.w.type), offsets = has_offsets(s.w.type);
  const auto fn = sixteen ? offsets ? &tile<16, true> : &tile<16, false> : offsets ? &tile<8, true> : &tile<8, false>;
  if (sixteen) {
    FOVEA_TILE_CONFIG_AS(kInt8Tiles<16>);
  } else {
    FOVEA_TILE_CONFIG_AS(kInt8Tiles<8>);
  }
  in_tiles<kTileX>(s, scratch, false, tiles, whole, [fn](int64_t, const Tile& t) { fn(t); });
  FOVEA_TILE_RELEASE();
}

}  // namespace
}  // namespace fovea::cpu
