// Rope, norm of q and k, cache write and hash codes in one pass. ops.h has the conventions.
#pragma once

#include <cstdint>

#include "kernels/ops/attention.h"

namespace fovea {

// Sign-rotation hash of a head vector (docs/algorithms.md, "Rotation and code"): `rotations` rotations of n bits each, n = d rounded
// up to a power of two; each is three rounds of (signs, Walsh-Hadamard); bits = sign; truncated to `bits`.
struct HashCodec {
  int32_t head_dim = 0;
  int32_t bits = 0;              // 64, 128 or 256
  int32_t n = 0;                 // power of two >= head_dim
  int32_t rotations = 0;         // ceil(bits / n)
  const float* signs = nullptr;  // [rotations, 3, n], each +1 or -1, in the order applied
};

// Plane `codes` of one layer: [num_blocks, kv_heads, words, bs] u64, words = bits / 64, indexed by BlockId (resident),
// word-major inside a block so that one vector holds a word of many tokens.
struct CodesView {
  uint64_t* codes = nullptr;
  int64_t block_stride = 0;  // u64 elements
  int64_t head_stride = 0;   // u64 elements
  HashCodec codec;
};

struct KvWriteParams {
  int32_t tokens = 0;  // T
  int32_t num_heads = 0;
  float* q = nullptr;             // [T, H, d] in: projection; out: normed and rotated, in place
  const float* k = nullptr;       // [T, kv_heads, d] projection
  const float* v = nullptr;       // [T, kv_heads, d]
  const float* q_norm = nullptr;  // [d] RMSNorm weight per head, or null
  const float* k_norm = nullptr;  // [d] or null
  float norm_eps = 1e-6f;
  int32_t rope_dim = 0;                   // first rope_dim of d are rotated; 0: none
  bool rope_interleaved = false;          // false: pairs (i, i + rope_dim/2), as Llama; true: (2i, 2i+1)
  const float* cos = nullptr;             // [T, rope_dim / 2], attention scaling included
  const float* sin = nullptr;             // [T, rope_dim / 2]
  const int64_t* slot_mapping = nullptr;  // [T] slot * bs + offset; -1: do not write this token
  KvView kv;                              // kv.table is not used
  const int64_t* code_mapping = nullptr;  // [T] block * bs + offset for codes; null: slot_mapping
  const CodesView* codes = nullptr;       // null: no codes. Encodes k after rounding to the cache dtype.
};

}  // namespace fovea
