// The SIMD pieces of selection by hash codes: encode, scan, top-k. Chosen at run time for the CPU.
#pragma once

#include <fovea/kernels/cache.h>

#include <cstdint>

#include "kernels/cpu/select/block_queue.h"

namespace fovea::cpu {

// words[codec.bits / 64] of x [codec.head_dim]; equals ref::hash_encode bit for bit.
void hash_encode(const HashCodec& codec, const float* x, uint64_t* words);

// One query row against the codes of its sequence.
struct CodeScan {
  int kv_heads = 0;
  int queries_per_head = 0;
  int words = 0;  // 1 to 4
  int block_size = 16;
  const uint64_t* codes = nullptr;  // as CodesView
  int64_t block_stride = 0;
  int64_t head_stride = 0;
  const int32_t* slots = nullptr;  // of the row's sequence
  int64_t slot_head_stride = 0;
  int32_t len = 0;           // tokens beyond it never count
  bool share_heads = false;  // one result per block: the best over the KV heads
};

struct HashScan : CodeScan {
  const uint64_t* queries = nullptr;  // [kv_heads, queries_per_head, words]
  uint16_t* distances = nullptr;      // [kv_heads or 1, distance_stride]: least hamming distance of each block
  int64_t distance_stride = 0;
};

// Distances of blocks of the source, until it is empty.
void hash_scan(const HashScan& scan, BlockSource& source);

// distances[count] may be read up to a vector beyond its end.
inline constexpr int kDistancePadding = 64;

// The `keep` (1 to count) least of distances[0..count), ties to the lower index, ascending: units[i] = first
// + index. 16-bit ones are at most 0x7fff.
void hash_topk(const uint16_t* distances, int32_t count, int32_t keep, int32_t max_distance, int32_t first, int32_t* units);
void hash_topk(const int32_t* distances, int32_t count, int32_t keep, int32_t max_distance, int32_t first, int32_t* units);

}  // namespace fovea::cpu
