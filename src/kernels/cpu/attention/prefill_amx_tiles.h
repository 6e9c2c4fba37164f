// The AMX instructions that attention uses, as macros because tile numbers are part of the instruction; or,
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

#ifndef FOVEA_AMX_EMULATE

namespace fovea::cpu {
// All eight tiles: 16 rows of 64 bytes. Palette, start row, 14 reserved, 16 x u16 bytes a row, 16 x u8 rows.
struct TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);
alignas(64) inline constexpr TileConfig kTileConfig;
}  // namespace fovea::cpu

#define FOVEA_TILE_CONFIG() asm volatile("ldtilecfg %0" ::"m"(::fovea::cpu::kTileConfig) : "memory")
#define FOVEA_TILE_RELEASE() asm volatile("tilerelease" ::: "memory")
#define FOVEA_TILE_ZERO(t) asm volatile("tilezero %%tmm" #t ::: "memory")
// stride in bytes, of 16 rows
#define FOVEA_TILE_LOAD(t, from, stride) \
  asm volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(from), "r"(static_cast<int64_t>(stride)) : "memory")
#define FOVEA_TILE_STORE(t, to, stride) \
  asm volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(to), "r"(static_cast<int64_t>(stride)) : "memory")
// c[m][n] += sum over k of a[m][2k] b[k][2n] + a[m][2k+1] b[k][2n+1]
#define FOVEA_TILE_DOT(c, a, b) asm volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::: "memory")

#else

namespace fovea::cpu::amx_emulation {

struct Tile {
  alignas(64) uint8_t bytes[16][64];
};
inline thread_local Tile tiles[8];

inline void load(int t, const void* from, int64_t stride) {
  for (int r = 0; r < 16; ++r) std::memcpy(tiles[t].bytes[r], static_cast<const char*>(from) + r * stride, 64);
}
inline void store(int t, void* to, int64_t stride) {
  for (int r = 0; r < 16; ++r) std::memcpy(static_cast<char*>(to) + r * stride, tiles[t].bytes[r], 64);
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

}  // namespace fovea::cpu::amx_emulation

#define FOVEA_TILE_CONFIG() std::memset(::fovea::cpu::amx_emulation::tiles, 0xff, sizeof(::fovea::cpu::amx_emulation::tiles))
#define FOVEA_TILE_RELEASE() FOVEA_TILE_CONFIG()
#define FOVEA_TILE_ZERO(t) std::memset(&::fovea::cpu::amx_emulation::tiles[t], 0, 1024)
#define FOVEA_TILE_LOAD(t, from, stride) ::fovea::cpu::amx_emulation::load(t, from, stride)
#define FOVEA_TILE_STORE(t, to, stride) ::fovea::cpu::amx_emulation::store(t, to, stride)
#define FOVEA_TILE_DOT(c, a, b) ::fovea::cpu::amx_emulation::dot(c, a, b)

#endif
