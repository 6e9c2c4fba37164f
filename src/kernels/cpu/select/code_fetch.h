// CodeFetch: the codes of some blocks on their way into the L2 cache, a few lines at a time, while others are scored: where many are
// asked for at once the next loads wait for them (128 bits, from memory: 363 us instead of 430). More lines can be on their way to L2
// than to L1: a thread reads 16 GB/s instead of 9 on a Zen 4 core, of blocks in random order.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/cpu/select/hash_kernels.h"

namespace fovea::cpu {

// Where a head's codes of a block lie, words first, then what of the keys' lengths is kept.
inline const uint64_t* block_codes(const CodeScan& s, int32_t block, int head) {
  return s.codes + s.slots[head * s.slot_head_stride + block] * s.block_stride + head * s.head_stride;
}

// Blocks come in pieces, a power of two of them a block; of each its part of the codes of all heads, or of one where every head has
// a table of its own.
struct CodeFetch {
  static constexpr int kMost = 64;  // pieces
  static constexpr int kAllLines = 1 << 20;

  // `n` pieces from `first` on, of each at most its first lines. They are to be fetched by `steps` calls of some() or many().
  void find(const CodeScan& s, int64_t first, int n, int per_block, int head, int steps, int most_lines = kAllLines) {
    const int shift = std::countr_zero(static_cast<uint32_t>(per_block));
    const int64_t bytes = (s.slot_head_stride == 0 ? s.kv_heads : 1) * s.head_stride * 8 >> shift;
    count = n;
    lines = static_cast<int>(std::min<int64_t>((bytes + 63) / 64, most_lines));
    piece = line = 0;
    for (int i = 0; i < n; ++i) {
      const int64_t at = first + i;
      from[i] =
          reinterpret_cast<const char*>(block_codes(s, static_cast<int32_t>(at >> shift), head)) + (at & (per_block - 1)) * bytes;
    }
    pace = (n * lines + steps - 1) / steps;
  }
  // Four at a time, where that divides a piece's: what is around a request costs more than itself.
  void some() { lines % 4 == 0 ? some<4>() : some<1>(); }
  // Up to 16 at a time, for steps that are far between.
  void many() {
    if (lines % 16 == 0 && pace >= 16) return some<16>();
    if (lines % 8 == 0 && pace >= 8) return some<8>();
    some();
  }

 private:
  template <int kLines>
  void some() {
    for (int left = pace; left > 0 && piece < count; left -= kLines) {
      const char* at = from[piece] + int64_t{line} * 64;
#pragma GCC unroll 16
      for (int i = 0; i < kLines; ++i) __builtin_prefetch(at + i * 64, 0, 2);
      line += kLines;
      if (line == lines) line = 0, ++piece;
    }
  }

  const char* from[kMost];
  int count = 0, lines = 0;  // pieces, and cache lines of each
  int piece = 0, line = 0;   // the next one
  int pace = 0;              // lines at a time
};

}  // namespace fovea::cpu
