// XAttention's estimate for sparse prefill (Xu et al. 2025): which blocks of keys each block of queries reads. ops.h has the
// conventions; docs/xattention.md tells how and why.
//
// A cell is S = `stride` consecutive tokens, a block block_size tokens; both are anchored at position 0 of the sequence, so
// a choice does not depend on where a chunk begins. R = block_size / S cells make a block. Per query head:
//
//   A[i, j] = sum over s < S of q[i S + S - 1 - s] . k[j S + s]     the antidiagonal of a cell of S x S pairs
//   P[b, c] = sum over the cells i of block b of  (sum over the cells j of block c of W[i, j])
//   W[i, :] = softmax over j of A[i, :] * scale / (S norm)
//
// Only pairs count whose query is a row of this call and whose key exists and (causal) is not after its query; a cell
// without a pair has W = 0, and so has a row without a cell. Scores are float32: unscaled sums overflow 16-bit types.
#pragma once

#include <fovea/kernels/attention.h>

#include <algorithm>
#include <cstdint>

namespace fovea {

// Chooses per tile (the rows of one sequence that lie in one block of queries) and query head. Forced blocks come first and
// count: the first `sink_blocks`, every block the tile's diagonal crosses, and those before it that make them `recent_blocks`.
// Then blocks in descending P, ties to the lower index, until they are top_k, or, where that is 0, until the sum of P over the
// chosen reaches threshold times its sum over all; the one that crosses is in. A threshold of 1 or more takes every block. If P is
// not a number (a key in the cache is not), every block is taken.
struct XAttentionParams {
  // The rows, as in AttentionParams.
  const float* q = nullptr;  // [T, H, d], post-rope
  int32_t num_heads = 0;     // H, a multiple of kv.kv_heads
  int32_t num_seqs = 0;
  const int32_t* q_indptr = nullptr;  // [num_seqs + 1]
  const int32_t* seq_len = nullptr;   // [num_seqs] keys of the sequence, its own rows included
  KvView kv;                          // V is not read
  float scale = 1.0f;                 // of attention, usually d^-0.5

  int32_t stride = 16;       // S, a power of two in [4, 64]
  int32_t block_size = 128;  // 64 or 128 tokens
  float norm = 1.0f;         // > 0
  bool causal = true;        // false: every row sees every key of its sequence

  // Tile t is rows [tile_indptr[t], tile_indptr[t + 1]) of sequence tile_seq[t]; xattention_tiles() makes them. They cover
  // the rows of the call in order.
  int32_t tiles = 0;
  const int32_t* tile_seq = nullptr;     // [tiles]
  const int32_t* tile_indptr = nullptr;  // [tiles + 1]

  const float* threshold = nullptr;  // [H] each > 0
  int32_t top_k = 0;                 // blocks, instead
  int32_t sink_blocks = 1;
  int32_t recent_blocks = 1;  // >= 1
  // One list per KV head: the blocks that at least half of its query heads chose, each by its own threshold (not their
  // union, which is dense). Forced blocks are in every list, so in this one too.
  bool group_vote = false;

  // Out. Blocks are logical: block u is tokens [u * block_size, (u + 1) * block_size), as units of a Selection.
  int32_t capacity = 0;       // >= the blocks of any sequence, causal: up to its last row
  int32_t* units = nullptr;   // [tiles, groups, capacity] ascending; groups = group_vote ? kv_heads : H
  int32_t* counts = nullptr;  // [tiles, groups]
  float* sums = nullptr;      // [tiles, H, capacity] P, 0 beyond the tile's blocks; or null
};

// The choice alone, from `sums` as xattention_select leaves them: by other thresholds or counts, or of sums from elsewhere. Of kv
// only kv_heads matters; q, scale, stride and norm do not.
struct XAttentionChoiceParams : XAttentionParams {};

// The estimate in the two steps that its authors published, over contiguous arrays, with A in memory between them. The choice of
// blocks by what comes out is xattention_choose.
//
// attn_weights[i, j] = A[i, j], unscaled; -inf where no pair counts. Row 0 of the query is the first token of cell chunk_start;
// pairs beyond either length do not count, nor (causal) those whose key is after its query.
struct FlatGroupGemmParams {
  const void* query_states = nullptr;  // [batch, heads, q_len, head_dim]
  const void* key_states = nullptr;    // [batch, kv_heads, kv_len, head_dim]
  DType dtype = DType::f32;            // of both: f32, f16 or bf16
  int32_t batch = 1;
  int32_t heads = 1;
  int32_t kv_heads = 1;  // divides heads
  int32_t q_len = 0;
  int32_t kv_len = 0;
  int32_t head_dim = 0;
  int32_t stride = 16;      // S, at least 2
  int32_t chunk_start = 0;  // cells
  int32_t chunk_end = 0;    // chunk_start + q_cells()
  bool is_causal = true;
  float* attn_weights = nullptr;  // [batch, heads, q_cells(), k_cells()]

  constexpr int32_t q_cells() const { return q_len / stride + (q_len % stride != 0); }
  constexpr int32_t k_cells() const { return kv_len / stride + (kv_len % stride != 0); }
};

// block_sums = the sums over blocks of R x R cells, R = reshaped_block_size, of softmax(attn_weights_slice * scale), 2^x for e^x:
// scale holds log2(e) / (sqrt(d) S norm). Row r is cell chunk_start + r: causal, it sees the columns up to its own index. Rows from
// real_q_len on (a cell's index) are padding, and add nothing; nor does a row that sees nothing but -inf.
struct SoftmaxBlockSumParams {
  const float* attn_weights_slice = nullptr;  // [batch, heads, rows, cols]
  int32_t batch = 1;
  int32_t heads = 1;
  int32_t rows = 0;
  int32_t cols = 0;
  int32_t reshaped_block_size = 8;  // at most 1,024
  int32_t segment_size = 8;         // columns that the softmax takes at a time, >= R: changes rounding alone
  int32_t chunk_start = 0;
  int32_t chunk_end = 0;  // chunk_start + rows
  int32_t real_q_len = 0;
  float scale = 1.0f;  // > 0
  bool is_causal = true;
  float* block_sums = nullptr;  // [batch, heads, row_blocks(), col_blocks()]

  constexpr int32_t row_blocks() const { return rows / reshaped_block_size + (rows % reshaped_block_size != 0); }
  constexpr int32_t col_blocks() const { return cols / reshaped_block_size + (cols % reshaped_block_size != 0); }
};

// The tiles of a call: every sequence's rows cut at positions that are multiples of block_size. Returns their number; at
// most T, and at most T / block_size + 2 for each sequence. tile_indptr holds one more entry.
inline int32_t xattention_tiles(const int32_t* q_indptr, const int32_t* seq_len, int32_t num_seqs, int32_t block_size,
                                int32_t* tile_seq, int32_t* tile_indptr) {
  int32_t tiles = 0;
  tile_indptr[0] = q_indptr[0];
  for (int32_t s = 0; s < num_seqs; ++s) {
    for (int32_t row = q_indptr[s]; row < q_indptr[s + 1];) {
      const int32_t pos = seq_len[s] - (q_indptr[s + 1] - row);
      row = std::min(q_indptr[s + 1], row + block_size - pos % block_size);
      tile_seq[tiles++] = s;
      tile_indptr[tiles] = row;
    }
  }
  return tiles;
}

}  // namespace fovea
