// The arithmetic of decode attention: a task's streams of keys, and the merge of partitions.
#pragma once

#include "kernels/cpu/attention/decode_keys.h"

namespace fovea::cpu {

// What a partition leaves: weights are 2^(score * log2 e - m), so m is in units of log2.
struct Partial {
  float* o = nullptr;  // [heads, d] sum of weight * v, not divided
  float* m = nullptr;  // [heads] a number near the largest exponent; -inf: no key
  float* l = nullptr;  // [heads] sum of weights
};

// One walk over the keys of one partition of one row, for head groups [group, group + groups). A head group
// shares a read of K and V; more groups than one share the keys' positions and page table, so blocks are read
// in the order they lie.
struct DecodeStream {
  KeySet keys;
  int64_t first = 0, last = 0;  // candidates of this partition
  int32_t seq = 0;
  int64_t pos = 0;   // of the query
  int32_t head = 0;  // first query head
  int32_t groups = 0;
  int64_t q = 0;  // first element of [groups * heads_per_group, d] in the call's q
  Partial result;
};

// Streams that one worker walks one after the other; the memory of each is prefetched while the one before it
// computes.
struct DecodeTask {
  const AttentionParams* params = nullptr;
  int32_t heads_per_group = 0;
  const DecodeStream* streams = nullptr;
  int32_t num_streams = 0;
};

// Memory of one worker, 64-byte aligned.
struct DecodeScratch {
  float* q = nullptr;         // [num_heads, 2 * d] scaled, in the order that K's elements load
  float* q_wide = nullptr;    // [num_heads, d] of a q in 16 bits
  float* o = nullptr;         // [num_heads, d] in the order that V's elements load
  float* scores = nullptr;    // [heads of a group, kDecodeChunk], then weights
  float* m = nullptr;         // [num_heads]
  float* l = nullptr;         // [num_heads, 16] a sum per lane
  float* rescale = nullptr;   // [heads of a group]
  uint8_t* k_copy = nullptr;  // [kDecodeChunk, d] rows that are not scored in place: of the classic layout, or as f16 of fp8
  uint8_t* v_copy = nullptr;
  KeyChunk chunks[2];
};

// fp8 KV is scored as f16: its keys and values are this times those.
constexpr float decode_unit(DType dtype) { return dtype == DType::fp8_e4m3 ? 256.0f : 1.0f; }

void attend_task(const DecodeTask& task, DecodeScratch& scratch);

// Folds partitions 0..count-1, in that order, into out [heads, d] of `dtype` and lse [heads] (null: not wanted);
// partition i is `stride` floats after partition i - 1. No key at all: out 0, lse -inf.
void merge_partials(const Partial& first, int64_t count, int64_t stride, int32_t heads, int32_t head_dim, float v_scale, void* out,
                    DType dtype, float* lse);

}  // namespace fovea::cpu
