// The SIMD pieces of selection by asymmetric codes: prepare the queries, scan. Chosen at run time for the CPU.
//
// A code and a query q4 meet in a weighted distance: D = sum of |q4[i]| over the bits whose sign is not that of q4[i]. The signed
// sum of fovea/kernels/select.h is S = A - 2 D, A = sum of |q4[i]|. D is looked up: a table gives the share of each value of a
// nibble.
#pragma once

#include <cstdint>

#include "kernels/cpu/select/hash_kernels.h"

namespace fovea::cpu {

inline constexpr int kTableBytes = 16;           // of a nibble: one byte for each of its values
inline constexpr int kTableBytesPerWord = 1216;  // at most; what is in them is the instruction set's own (asymmetric_scan_inl.h)

struct QueryScale {
  int32_t sum = 0;     // A
  float weight = 0;    // c / |q|
  float length = 0;    // |q|; 0 where q4 is
  bool bytes = false;  // no word's sum is beyond 255
};

// Tables [codec.bits / 64, kTableBytesPerWord], at a multiple of 64, and scale of one query head. narrow: AsymmetricScan's.
QueryScale quantize_query(const HashCodec& codec, const float* query, bool narrow, uint8_t* tables);

struct AsymmetricScan : CodeScan {
  const uint8_t* tables = nullptr;     // [kv_heads, queries_per_head, words, kTableBytesPerWord], at a multiple of 64
  const QueryScale* scales = nullptr;  // [kv_heads, queries_per_head]
  bool length_factor = false;
  bool streams = false;      // CpuFeatures::streams
  bool narrow = false;       // bytes are looked up among 64, not 128 (CpuFeatures::narrow_look_ups)
  int32_t* ranks = nullptr;  // [kv_heads or 1, rank_stride]: of each block's score, the better the lower; in (-2^31, 2^31 - 1)
  int64_t rank_stride = 0;
};

// Ranks of blocks of the source, until it is empty.
void asymmetric_scan(const AsymmetricScan& scan, BlockSource& source);

}  // namespace fovea::cpu
