// Sign-rotation hash of head vectors, Hamming scores and block selection: scalar, one reference operation
// each. Source: GSA On-Device of UCM as docs/algorithms.md restates it; see docs/hash-selection.md.
#pragma once

#include <fovea/kernels/hash_rotation.h>
#include <fovea/kernels/select.h>

#include <cstdint>

#include "kernels/ref/topk.h"

namespace fovea {

namespace ref {

// In place, Sylvester order, unnormalised. The order of the butterflies is part of the definition: float sums round, and every
// backend that keeps this order gets the same bits.
void walsh_hadamard(float* x, int n);

// y[bits] of x [head_dim]: rotation after rotation, unnormalised.
void rotate(const HashCodec& codec, const float* x, float* y);

// words[bits / 64] of x [head_dim].
void hash_encode(const HashCodec& codec, const float* x, uint64_t* words);

// Bit i of words is bits[i] != 0; the last word is filled up with zeros. words: [ceil(count / 64)].
void pack_bits(const uint8_t* bits, int64_t count, uint64_t* words);

// scores[i, j] = 64 * words - 2 * hamming(queries[i], keys[j]): in [-bits, bits], higher is nearer.
void hamming_scores(const uint64_t* queries,  // [query_count, words]
                    int query_count,
                    const uint64_t* keys,  // [key_count, words]
                    int64_t key_count, int words,
                    int32_t* scores);  // [query_count, key_count]

// Where the codes of one sequence and KV head lie, and how many of its tokens a row sees.
struct BlockCodes {
  const uint64_t* codes = nullptr;  // a head's plane: block b starts at codes + slots[b] * block_stride
  int64_t block_stride = 0;         // u64 elements
  const int32_t* slots = nullptr;   // [ceil(len / block_size)]
  int32_t block_size = 16;
  int32_t len = 0;  // tokens beyond it never count
  int32_t words = 0;
  bool length_factor = false;  // [block_size] bf16 behind a block's codes
};

// scores[b] = max over the block's valid tokens and the queries of bits - 2 * hamming; [ceil(len /
// block_size)].
void block_scores(const BlockCodes& blocks, const uint64_t* queries, int query_count, int32_t* scores);

// The code of one token's key [codec.head_dim], with its length factor, to its place in the plane. slot: block * bs + offset.
void write_code(const CodesView& view, int block_size, int64_t slot, int head, const float* key);

// All of the above, as fovea/kernels/select.h states it.
void hash_select(const HashSelectParams& p);

}  // namespace ref
}  // namespace fovea
