// Operations of the DSA indexer (DeepSeek-V3.2's lightning indexer; docs/dsa.md): index keys are written beside K and V,
// every query row scores them, and the best tokens of each row are chosen.
//
//   I[t, s] = sum_h w[t, h] * relu(q[t, h] . k[s] * di^-0.5)      s <= position of t; w is signed, so I can be negative
//
// T token rows, Hi index heads, di index dimension, bs block size in tokens. Index keys have one head, shared by all Hi.
// Sums run by fused multiply-add in ascending order, first over di, then over heads, from +0: backends that keep that
// order give the same bits, and a score does not depend on the rows or keys beside it.
#pragma once

#include <fovea/types.h>

#include <cstdint>

namespace fovea {

inline constexpr int kMaxIndexDim = 256;
inline constexpr int kMaxFp8IndexDim = 128;  // one scale covers it
inline constexpr int kMaxIndexHeads = 128;

constexpr int64_t index_element_bytes(IndexPrecision p) {
  return p == IndexPrecision::exact ? 4 : p == IndexPrecision::bf16 ? 2 : 1;
}

// One layer's index keys. Planes of the KV cache, indexed by BlockId.
struct IndexKeysView {
  IndexPrecision precision = IndexPrecision::exact;
  void* k = nullptr;                     // [num_blocks, bs, di] float, bf16 or e4m3
  float* scale = nullptr;                // [num_blocks, bs] powers of two; fp8 only, else null
  int32_t block_size = 16;               // tokens, a power of two
  int32_t dim = 0;                       // di, a multiple of 8 up to 256
  const int32_t* block_table = nullptr;  // [seqs, table_stride] BlockIds; entries beyond a length: any. Not for index_write
  int64_t table_stride = 0;
};

// Takes the projections of one layer: norms, rotates and rounds them; writes the keys; leaves q and weights ready to score.
// k' = LayerNorm(k); q and k' are rotated in their first rope_dim dimensions; weights become
// w * Hi^-0.5 * di^-0.5 (and times q's scale, in fp8), so that a score is sum_h weights * relu(q . k) times k's scale.
struct IndexWriteParams {
  int32_t tokens = 0;                  // T
  int32_t heads = 0;                   // Hi; 0: keys alone are written, q and weights are null
  float* q = nullptr;                  // [T, Hi, di] in: wq_b's product; out: rotated and rounded (fp8: without its scale)
  const float* k = nullptr;            // [T, di] wk's product
  float* weights = nullptr;            // [T, Hi] in: weights_proj's product; out: see above
  const float* norm_weight = nullptr;  // [di] of k's LayerNorm
  const float* norm_bias = nullptr;    // [di]
  float norm_eps = 1e-6f;
  int32_t rope_dim = 0;                   // even, <= di; 0: none
  bool rope_interleaved = false;          // false: pairs (i, i + rope_dim / 2), DeepSeek; true: (2i, 2i + 1), GLM
  const float* cos = nullptr;             // [T, rope_dim / 2]
  const float* sin = nullptr;             // [T, rope_dim / 2]
  const int64_t* slot_mapping = nullptr;  // [T] block * bs + offset; -1: the key is not written
  IndexKeysView keys;
};

// What the entries of a list of chosen tokens mean. An index of one space taken for another reads wrong memory, so a list
// carries its space, and its reader checks it.
enum class IndexSpace : uint8_t {
  position,  // token of the sequence, 0-based; ascending
  slot,      // block * bs + offset through the sequence's block table (PAGED)
  ragged,    // position + the request's start in the concatenated K and V (RAGGED)
};

// The tokens chosen for each row: counts[r] valid entries in ascending order of position, then -1 up to the capacity.
struct TopkIndices {
  IndexSpace space = IndexSpace::position;
  int32_t rows = 0;
  int32_t capacity = 0;        // entries a row has room for
  int32_t* indices = nullptr;  // [rows, capacity]
  int32_t* counts = nullptr;   // [rows]
};

// For each row the min(topk, row_len) keys of highest score; ties to the lower position (relu makes many exact zeros);
// a NaN ranks below everything. A row of length <= topk takes all its keys and scores none. Keys at positions >= row_len are
// never read.
//
// Scores stream by tiles into a running choice, O(rows * topk) memory at any length. With `logits` they are written out
// instead, as many rows at a time as there is room for: the oracle of the streaming form, equal to it bit for bit.
struct IndexTopkParams {
  int32_t rows = 0;
  int32_t heads = 0;                 // Hi
  const float* q = nullptr;          // [rows, Hi, di], as index_write leaves it
  const float* weights = nullptr;    // [rows, Hi], as index_write leaves them
  const int32_t* row_seq = nullptr;  // [rows] row of the block table; rows that share keys stand together
  const int32_t* row_len = nullptr;  // [rows] keys visible to the row; 0 pads a batch: its count becomes 0
  int32_t topk = 0;                  // >= 1, <= out.capacity
  int64_t max_len = 0;               // >= every row_len
  IndexKeysView keys;
  TopkIndices out;  // space position
  // Also writes the list in another space, in the choice's last stage (the fused transform); indices null: not.
  TopkIndices mapped;                     // space slot or ragged; counts may be null
  const int32_t* ragged_start = nullptr;  // [rows] the request's start in the concatenated K and V; space ragged only
  float* logits = nullptr;                // scratch of the materialised form, or null: streaming
  int64_t logits_floats = 0;              // its size; at least one row (max_len)
};

// The same transform applied after the choice.
struct IndexTransformParams {
  TopkIndices in;                        // space position
  TopkIndices out;                       // space slot or ragged; rows and capacity of `in`; counts may be null
  const int32_t* row_seq = nullptr;      // [rows]; slot only
  const int32_t* block_table = nullptr;  // as IndexKeysView; slot only
  int64_t table_stride = 0;
  int32_t block_size = 16;
  const int32_t* ragged_start = nullptr;  // [rows]; ragged only
};

}  // namespace fovea
