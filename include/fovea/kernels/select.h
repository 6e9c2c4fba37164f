// Selection of blocks for rows that read only a part of their context: by hash codes of the keys, by a summary of each block
// (the mean of its keys, the box around them, one hash code), or by the attention mass that a block holds, which all of these
// approximate. fovea/kernels.h has the conventions.
//
// Sources: mean: UCM's GSA; box: Quest (Tang et al. 2024); codes: docs/hash-selection.md.
#pragma once

#include <fovea/kernels/attention.h>
#include <fovea/kernels/cache.h>
#include <fovea/kernels/weight.h>

#include <cstdint>

namespace fovea {

// Which blocks to keep: of row r k[r] blocks, the first `init_blocks`, the last `local_blocks` (the partial one is the last),
// the rest by score, ties to the lower index; ascending. k[r] >= blocks: all.
struct BlockChoice {
  int32_t rows = 0;
  int32_t kv_heads = 0;
  int32_t block_size = 16;
  const int32_t* row_len = nullptr;  // [rows] keys visible to the row; 0 pads a batch: its counts become 0
  const int32_t* k = nullptr;        // [rows] blocks to keep, >= 1, <= capacity
  int32_t init_blocks = 1;
  int32_t local_blocks = 2;
  bool share_heads = false;   // one selection over all KV heads (score = max over them); groups = 1
  int32_t* units = nullptr;   // out [rows, groups, capacity]
  int32_t* counts = nullptr;  // out [rows, groups]
  int32_t capacity = 0;
};

// Such a choice from queries.
struct QueryBlockChoice : BlockChoice {
  int32_t num_heads = 0;
  const float* q = nullptr;          // [rows, H, d], post-rope
  const int32_t* row_seq = nullptr;  // [rows] row of the page table
  bool average_group = false;        // average the query over the group before it scores or is encoded
  PageTableView table;               // block table (codes and summaries are indexed by BlockId)
};

// For each query row r: encode its H query heads, score[kv_head, block] = max over the block's tokens at positions
// < row_len[r] and over the group's heads of (bits - 2 * hamming).
//
// codec.asymmetric: of the `bits` elements y of a rotated query head: m = max |y| / 7, q4 = y / m, rounded half to even; the score
// of a key is (float(S) * f) * w, S = sum of q4[i] * (bit i ? 1 : -1), f its length factor (1 without), and w = c / |q|,
// c = m * scale, divided in float64, |q| the root of the sum of squares in float64, in the order of HashCodec::length_factor. Where
// m is 0, or not finite, q4 and w are 0. (f S c estimates q . k times the number of rotations; by |q| the heads of a group
// compare.) average_group takes the sum of the group's queries in both: a scale changes no order.
//
// Budgets by estimated mass (MassBudget): of codec.length_factor, without share_heads; ref and cpu alone. For row r and KV head h,
// b over all of its blocks, those of windows too: level[b] = floor((best - score[b]) * a), at most 2,047, best the greatest score,
// a = 64 log2(e) softmax_scale (n / bits) |q|, |q| the mean length of the queries (0 of one without q4), in float64, rounded once.
// Its mass[b] is 2^30 2^(-level[b] / 64) by a table of integers, M their sum, m = floor(64 log2(M / 2^30)): -(level[b] + m) / 64 is
// log2 of the block's share (kernels/common/mass_levels.h).
// split, of rows with k < blocks: T levels of share leave head h n_h(T) blocks: its windows, and the others with level + m <= T; at
// least k / 4 (rounded up) and its windows, at most 4 k and all. T is the greatest at which all heads have kv_heads * k or fewer;
// what is left of these goes to the heads in order, up to n_h(T + 1) each. The n_h by score, as above, are kept.
// top_p: then n_h falls to the least number, but for the windows, that hold the share: 10,000 times their mass >= M * top_p_1e4.
struct MassBudget {
  bool split = false;       // kv_heads * k[r] blocks of all heads together: capacity >= min(4 k, blocks)
  int32_t top_p_1e4 = 0;    // in units of 1 / 10,000; 0: all that they may keep
  float softmax_scale = 1;  // of attention's scores
  bool operator==(const MassBudget&) const = default;
  explicit operator bool() const { return split || top_p_1e4 > 0; }
};

// Weights that an operation soon after this one reads.
struct ReadSoon {
  const void* data = nullptr;
  int64_t bytes = 0;
  WeightType type = WeightType::bf16;
};

struct HashSelectParams : QueryBlockChoice {
  int32_t max_len = 0;  // >= every row_len: bounds scratch
  CodesView codes;
  // What is enqueued right before this call writes codes of no keys but the rows' own, those at row_len - 1: a GPU then reads the
  // others while that still runs.
  bool own_keys_new = false;
  // What is read behind the attention to these lists, or none. A GPU's memory has nothing to do while blocks are chosen: a part may be
  // fetched to the L2 cache then. No result depends on it.
  ReadSoon soon[2];
  MassBudget budget;
  // The k[r] / 4 blocks (or as many as are left) next in score behind those that row r keeps by score, ties to the lower index,
  // ascending: what its next steps may keep. None where it keeps none by score. next_counts null: not wanted. cpu and ref alone.
  int32_t* next_units = nullptr;   // out [rows, groups, next_capacity]
  int32_t* next_counts = nullptr;  // out [rows, groups]
  int32_t next_capacity = 0;       // >= every k / 4
};

// Brings the summaries of all blocks up to date that `slot_mapping` touches, from the keys in the cache: offsets 0 up to the
// highest that the step wrote (tokens of a block are written in order, so these are its valid tokens; what lies beyond is
// never read). Several tokens of a block, in any order of rows, make one update.
struct BlockSummariesParams {
  int32_t tokens = 0;
  const int64_t* slot_mapping = nullptr;  // [tokens] block * bs + offset; -1: none
  KvView kv;                              // K, times its scale; V and the table are not read
  float* mean = nullptr;                  // [num_blocks, kv_heads, d]: float32 sum in token order, divided by their number; or null
  float* minmax = nullptr;                // [num_blocks, kv_heads, 2, d]: least, then greatest of each dimension; or null
  uint64_t* mean_codes = nullptr;         // [num_blocks, kv_heads, bits / 64]: code of the mean; or null
  HashCodec codec;                        // of mean_codes
};

// Codes of the keys that lie in the cache now, for a codec that the fused cache write does not keep.
struct EncodeCodesParams {
  int32_t tokens = 0;
  const int64_t* slot_mapping = nullptr;  // [tokens] block * bs + offset; -1: none; the others distinct
  const int64_t* code_mapping = nullptr;  // [tokens] likewise where codes go; null: slot_mapping
  KvView kv;                              // as in BlockSummariesParams
  CodesView codes;
};

// Codes of vectors that lie in no cache: queries, which hash_select encodes itself.
struct HashEncodeParams {
  const float* x = nullptr;  // [rows, head_dim]
  int64_t rows = 0;
  HashCodec codec;              // asymmetric: of keys
  uint64_t* codes = nullptr;    // out [rows, bits / 64]
  uint16_t* factors = nullptr;  // out [rows] bf16, with codec.length_factor; else null
};

// What hash_select ranks blocks by, of symmetric codes: scores[r, h, b] = the greatest bits - 2 * hamming between the codes of row
// r's queries of KV head h and those of the keys of its block b at positions < row_len[r]. An integer, exact. Entries beyond the
// row's blocks are not written. block_topk chooses by them.
struct HammingScoresParams {
  int32_t rows = 0;
  int32_t num_heads = 0;
  int32_t kv_heads = 0;
  int32_t block_size = 16;
  const uint64_t* query_codes = nullptr;  // [rows, H, bits / 64]
  const int32_t* row_seq = nullptr;       // [rows] row of the page table
  const int32_t* row_len = nullptr;       // [rows] keys visible to the row
  PageTableView table;                    // block table
  CodesView codes;
  float* scores = nullptr;  // out [rows, kv_heads, max_blocks]
  int32_t max_blocks = 0;   // >= ceil(row_len / block_size) of every row
};

enum class BlockSummary : uint8_t {
  mean,       // dot product of the block's mean key and the sum of the group's queries
  minmax,     // sum over i of max(q_i lo_i, q_i hi_i): no key of the block scores more; greatest over the group's heads
  mean_code,  // bits - 2 hamming of the mean's code; greatest over the group's heads
};

// Scores the blocks of each row and KV head by a summary.
struct SummarySelectParams : QueryBlockChoice {
  BlockSummary summary = BlockSummary::mean;
  int32_t head_dim = 0;          // a multiple of 16 up to 256 (any multiple of 8 in ref)
  const float* plane = nullptr;  // mean or minmax, as BlockSummariesParams lays them out
  const uint64_t* mean_codes = nullptr;
  HashCodec codec;
};

// The softmax mass on each block, exactly: what a selection tries to guess. For row r and KV head h, mass[r, h, b] = sum over
// the group's query heads of the probability of block b's keys at positions < row_len[r]. A row's masses sum to the size of
// the group; beyond its blocks, and for a row of length 0, they are 0. Reads every key of the context.
struct AttentionMassParams {
  int32_t rows = 0;
  int32_t num_heads = 0;
  const float* q = nullptr;          // [rows, H, d], post-rope
  const int32_t* row_seq = nullptr;  // [rows] row of kv.table
  const int32_t* row_len = nullptr;  // [rows] keys visible to the row
  KvView kv;                         // K as in BlockSummariesParams; V is not read
  float scale = 1.0f;                // of the scores, usually d^-0.5
  float* mass = nullptr;             // out [rows, kv_heads, max_blocks]
  int32_t max_blocks = 0;            // >= ceil(row_len / bs) of every row
};

// Chooses by scores that are given. NaN counts as -inf. share_heads: by the sum of the heads' scores, added in order.
struct BlockTopkParams : BlockChoice {
  const float* scores = nullptr;  // [rows, kv_heads, max_blocks]
  int32_t max_blocks = 0;
};

// Lists that were chosen for rows' contexts as they were, as lists for the rows as they are now: of min(k, blocks) ascending
// blocks, the last `local_blocks` among them. A block that was opened since takes the place of the one that left the local window;
// where k has grown, the latest of the blocks left out come back. (From a list chosen for the row itself: that list.) What a row's
// own scores chose may be kept for a later call.
struct CarryOverParams {
  static constexpr int32_t kOwn = -1, kAbove = -2;
  int32_t rows = 0;
  int32_t groups = 0;
  int32_t block_size = 16;
  int32_t local_blocks = 2;
  const int32_t* row_len = nullptr;     // [rows] keys visible to the row; 0: its lists stay empty
  const int32_t* k = nullptr;           // [rows] blocks to keep, >= 1, <= capacity
  const int32_t* chosen = nullptr;      // [rows, groups, capacity] by each row's own scores, as BlockChoice has them
  const int32_t* from = nullptr;        // [rows] kOwn; kAbove: what the row before chose; else a place in `kept`
  const int32_t* from_count = nullptr;  // [rows] entries of each list at that place
  const int32_t* keep_at = nullptr;     // [rows] the place where `chosen` is kept, -1: none; no row's `from`
  int32_t* kept = nullptr;              // [places, groups, kept_capacity] in and out
  int32_t kept_capacity = 0;
  int32_t* units = nullptr;  // out [rows, groups, capacity], each as long as in `chosen`; not `chosen`
  int32_t capacity = 0;
};

}  // namespace fovea
