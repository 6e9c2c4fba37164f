// The AMX instructions that kernels use, as macros because tile numbers are part of the instruction; or,
// where FOVEA_AMX_EMULATE is defined, functions that compute the same from Intel's description, for machines
// without AMX.
//
// Own assembly instead of the intrinsics: g++ 12 declares neither that a tile load reads memory nor all that
// the configuration reads, and drops or moves the stores before them. The "memory" clobbers say both.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace fovea::cpu {
// Unless said otherwise all eight tiles have 16 rows of 64 bytes. Palette, start row, 14 reserved, 16 x u16 bytes a row, 16 x u8 rows.
struct TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);
alignas(64) inline constexpr TileConfig kTileConfig;
}  // namespace fovea::cpu

#define FOVEA_TILE_CONFIG() FOVEA_TILE_CONFIG_AS(::fovea::cpu::kTileConfig)

#ifndef FOVEA_AMX_EMULATE

#define FOVEA_TILE_CONFIG_AS(config) asm volatile("ldtilecfg %0" ::"m"(config) : "memory")
#define FOVEA_TILE_RELEASE() asm volatile("tilerelease" ::: "memory")
#define FOVEA_TILE_ZERO(t) asm volatile("tilezero %%tmm" #t ::: "memory")
// stride in bytes, of the rows in memory
#define FOVEA_TILE_LOAD(t, from, stride) \
  asm volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(from), "r"(static_cast<int64_t>(stride)) : "memory")
#define FOVEA_TILE_STORE(t, to, stride) \
  asm volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(to), "r"(static_cast<int64_t>(stride)) : "memory")
// c[m][n] += sum over k of a[m][2k] b[k][2n] + a[m][2k+1] b[k][2n+1]
#define FOVEA_TILE_DOT(c, a, b) asm volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::: "memory")
// Signed bytes: c[m][n] += sum over k and i of a[m][4k + i] b[k][4n + i], i in [0, 4)
#define FOVEA_TILE_DOT_INT8(c, a, b) asm volatile("tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::: "memory")

#else

#include "base/check.h"

namespace fovea::cpu::amx_emulation {

struct Tile {
  alignas(64) uint8_t bytes[16][64];
};
inline thread_local Tile tiles[8];
inline thread_local TileConfig shape;

// Tiles are zero then; poisoned here, so that nothing builds on it.
inline void configure(const TileConfig& config) {
  shape = config;
  std::memset(tiles, 0xff, sizeof(tiles));
}
inline void load(int t, const void* from, int64_t stride) {
  std::memset(&tiles[t], 0, sizeof(Tile));
  for (int r = 0; r < shape.rows[t]; ++r)
    std::memcpy(tiles[t].bytes[r], static_cast<const char*>(from) + r * stride, shape.row_bytes[t]);
}
inline void store(int t, void* to, int64_t stride) {
  for (int r = 0; r < shape.rows[t]; ++r) std::memcpy(static_cast<char*>(to) + r * stride, tiles[t].bytes[r], shape.row_bytes[t]);
}
// Else the hardware has no such instruction.
inline void check_shapes(int c, int a, int b) {
  FOVEA_CHECK(shape.rows[c] == shape.rows[a] && shape.row_bytes[c] == shape.row_bytes[b] &&
              shape.row_bytes[a] == 4 * shape.rows[b]);
}
inline float flush(float x) { return std::fabs(x) < FLT_MIN ? std::copysign(0.0f, x) : x; }
// Element i of bf16 row r, widened; a subnormal is zero.
inline float half_at(const Tile& t, int r, int i) {
  uint32_t bits = 0;
  std::memcpy(reinterpret_cast<char*>(&bits) + 2, &t.bytes[r][2 * i], 2);
  float x;
  std::memcpy(&x, &bits, 4);
  return flush(x);
}
// As the SDM states TDPBF16PS: even and odd elements summed apart, then together, then to c; subnormals are
// zero.
inline void dot(int c, int a, int b) {
  check_shapes(c, a, b);
  float b_even[16][16], b_odd[16][16];
  for (int k = 0; k < 16; ++k) {
    for (int n = 0; n < 16; ++n) {
      b_even[k][n] = half_at(tiles[b], k, 2 * n);
      b_odd[k][n] = half_at(tiles[b], k, 2 * n + 1);
    }
  }
  for (int m = 0; m < 16; ++m) {
    float even[16] = {}, odd[16] = {}, sum[16];
    for (int k = 0; k < 16; ++k) {
      const float a_even = half_at(tiles[a], m, 2 * k), a_odd = half_at(tiles[a], m, 2 * k + 1);
      for (int n = 0; n < 16; ++n) even[n] = flush(std::fma(a_even, b_even[k][n], even[n]));
      for (int n = 0; n < 16; ++n) odd[n] = flush(std::fma(a_odd, b_odd[k][n], odd[n]));
    }
    std::memcpy(sum, tiles[c].bytes[m], 64);
    for (int n = 0; n < 16; ++n) sum[n] = flush(flush(sum[n]) + flush(even[n] + odd[n]));
    std::memcpy(tiles[c].bytes[m], sum, 64);
  }
}

// As it states TDPBSSD.
inline void dot_int8(int c, int a, int b) {
  check_shapes(c, a, b);
  for (int m = 0; m < shape.rows[c]; ++m) {
    int32_t sum[16];
    std::memcpy(sum, tiles[c].bytes[m], 64);
    for (int k = 0; k < shape.rows[b]; ++k) {
      for (int i = 0; i < shape.row_bytes[b]; ++i) {
        const auto x = static_cast<int8_t>(tiles[a].bytes[m][4 * k + i % 4]), w = static_cast<int8_t>(tiles[b].bytes[k][i]);
        sum[i / 4] += x * w;
      }
    }
    std::memcpy(tiles[c].bytes[m], sum, 64);
  }
}

}  // namespace fovea::cpu::amx_emulation

#define FOVEA_TILE_CONFIG_AS(config) ::fovea::cpu::amx_emulation::configure(config)
#define FOVEA_TILE_RELEASE() FOVEA_TILE_CONFIG()
#define FOVEA_TILE_ZERO(t) std::memset(&::fovea::cpu::amx_emulation::tiles[t], 0, 1024)
#define FOVEA_TILE_LOAD(t, from, stride) ::fovea::cpu::amx_emulation::load(t, from, stride)
#define FOVEA_TILE_STORE(t, to, stride) ::fovea::cpu::amx_emulation::store(t, to, stride)
#define FOVEA_TILE_DOT(c, a, b) ::fovea::cpu::amx_emulation::dot(c, a, b)
#define FOVEA_TILE_DOT_INT8(c, a, b) ::fovea::cpu::amx_emulation::dot_int8(c, a, b)

#endif
