// The body of amx_linear(), over the tile instructions of amx_tiles.h: compiled once for the hardware
// and once, in the tests, over their emulation. Everything here has internal linkage, so that the two never
// meet.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/linear/amx_linear.h"

namespace fovea::cpu {
namespace {

constexpr int64_t kTileRows = 16;
constexpr int64_t kBlockRows = 64;  // of W: four C tiles share each B tile
static_assert(kAmxLinearTileK * sizeof(uint16_t) == 64);

struct alignas(64) StagedTile {
  uint16_t w[kTileRows][kAmxLinearTileK];
};

// The A tile at (row j, column c), zeros beyond n and k.
inline void stage(const AmxLinearSlice& s, int64_t j, int64_t c, StagedTile& to) {
  std::memset(&to, 0, sizeof(to));
  const int64_t rows = std::min(kTileRows, s.n - j), columns = std::min(kAmxLinearTileK, s.k - c);
  for (int64_t i = 0; i < rows; ++i) std::memcpy(to.w[i], s.w + (j + i) * s.k + c, columns * sizeof(uint16_t));
}

// C is [row of W][row of x]: out wants it transposed.
inline void finish(const AmxLinearSlice& s, int64_t j, const float (&c)[kTileRows][kTileRows]) {
  const int64_t n = std::min(kTileRows, s.n - j);
  for (int32_t r = 0; r < s.rows; ++r) {
    float* out = s.out + r * s.out_stride + j;
    for (int64_t i = 0; i < n; ++i) out[i] = c[i][r] + (s.bias ? s.bias[j + i] : 0.0f);
  }
}

// Asks for what these 16 rows read ahead_bytes later: near the end of a row that is the start of the row 64
// below.
inline void prefetch_rows(const AmxLinearSlice& s, const uint16_t* row, int64_t c) {
  const int64_t stride = s.k * static_cast<int64_t>(sizeof(uint16_t));
  const int64_t ahead = c * static_cast<int64_t>(sizeof(uint16_t)) + s.ahead_bytes;
  const char* p = reinterpret_cast<const char*>(row) + ahead + (ahead < stride ? 0 : (kBlockRows - 1) * stride);
  for (int64_t i = 0; i < kTileRows; ++i) __builtin_prefetch(p + i * stride, 0, 2);
}

// 64 whole rows of W. Tiles: 0 to 3 sums, 4 x, 5 to 7 W.
inline void block_64(const AmxLinearSlice& s, int64_t j) {
  const int64_t stride = s.k * static_cast<int64_t>(sizeof(uint16_t));
  const uint16_t* w0 = s.w + j * s.k;
  const uint16_t* w1 = w0 + kTileRows * s.k;
  const uint16_t* w2 = w1 + kTileRows * s.k;
  const uint16_t* w3 = w2 + kTileRows * s.k;
  const uint16_t* x = s.packed;
  FOVEA_TILE_ZERO(0);
  FOVEA_TILE_ZERO(1);
  FOVEA_TILE_ZERO(2);
  FOVEA_TILE_ZERO(3);
  int64_t c = 0;
  for (; c + kAmxLinearTileK <= s.k; c += kAmxLinearTileK, x += kAmxLinearTileK * kAmxLinearMaxRows) {
    FOVEA_TILE_LOAD(4, x, 64);
    prefetch_rows(s, w0, c);
    FOVEA_TILE_LOAD(5, w0 + c, stride);
    FOVEA_TILE_DOT(0, 5, 4);
    prefetch_rows(s, w1, c);
    FOVEA_TILE_LOAD(6, w1 + c, stride);
    FOVEA_TILE_DOT(1, 6, 4);
    prefetch_rows(s, w2, c);
    FOVEA_TILE_LOAD(7, w2 + c, stride);
    FOVEA_TILE_DOT(2, 7, 4);
    prefetch_rows(s, w3, c);
    FOVEA_TILE_LOAD(5, w3 + c, stride);
    FOVEA_TILE_DOT(3, 5, 4);
  }
  if (c < s.k) {
    StagedTile tail[4];
    for (int64_t i = 0; i < 4; ++i) stage(s, j + i * kTileRows, c, tail[i]);
    FOVEA_TILE_LOAD(4, x, 64);
    FOVEA_TILE_LOAD(5, &tail[0], 64);
    FOVEA_TILE_DOT(0, 5, 4);
    FOVEA_TILE_LOAD(6, &tail[1], 64);
    FOVEA_TILE_DOT(1, 6, 4);
    FOVEA_TILE_LOAD(7, &tail[2], 64);
    FOVEA_TILE_DOT(2, 7, 4);
    FOVEA_TILE_LOAD(5, &tail[3], 64);
    FOVEA_TILE_DOT(3, 5, 4);
  }
  alignas(64) float sums[4][kTileRows][kTileRows];
  FOVEA_TILE_STORE(0, sums[0], 64);
  FOVEA_TILE_STORE(1, sums[1], 64);
  FOVEA_TILE_STORE(2, sums[2], 64);
  FOVEA_TILE_STORE(3, sums[3], 64);
  for (int64_t i = 0; i < 4; ++i) finish(s, j + i * kTileRows, sums[i]);
}

// Up to 16 rows of W: what 64 leaves over.
inline void block_16(const AmxLinearSlice& s, int64_t j) {
  const int64_t stride = s.k * static_cast<int64_t>(sizeof(uint16_t));
  const uint16_t* x = s.packed;
  const bool whole = j + kTileRows <= s.n;
  FOVEA_TILE_ZERO(0);
  for (int64_t c = 0; c < s.k; c += kAmxLinearTileK, x += kAmxLinearTileK * kAmxLinearMaxRows) {
    FOVEA_TILE_LOAD(4, x, 64);
    if (whole && c + kAmxLinearTileK <= s.k) {
      prefetch_rows(s, s.w + j * s.k, c);
      FOVEA_TILE_LOAD(5, s.w + j * s.k + c, stride);
      FOVEA_TILE_DOT(0, 5, 4);
    } else {
      StagedTile part;
      stage(s, j, c, part);
      FOVEA_TILE_LOAD(5, &part, 64);
      FOVEA_TILE_DOT(0, 5, 4);
    }
  }
  alignas(64) float sums[kTileRows][kTileRows];
  FOVEA_TILE_STORE(0, sums, 64);
  finish(s, j, sums);
}

inline void amx_linear_slice(const AmxLinearSlice& s) {
  FOVEA_TILE_CONFIG();
  int64_t j = 0;
  for (; j + kBlockRows <= s.n; j += kBlockRows) block_64(s, j);
  for (; j < s.n; j += kTileRows) block_16(s, j);
  FOVEA_TILE_RELEASE();
}

}  // namespace
}  // namespace fovea::cpu
