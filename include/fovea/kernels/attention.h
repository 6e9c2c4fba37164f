// Attention over a paged KV cache: how a layer's K and V lie in memory, and the calls that read them. fovea/kernels.h has the
// conventions.
#pragma once

#include <fovea/selection.h>
#include <fovea/types.h>

#include <cstdint>

namespace fovea {

class KeyGate;  // of an engine's own

enum class KvLayout : uint8_t {
  hnd,      // K and V: [num_blocks, kv_heads, bs, d], or what other order strides say: [num_blocks, bs, kv_heads, d] (NHD)
  classic,  // K: [num_blocks, kv_heads, d/x, bs, x] with x = 16 / sizeof(element); V: [num_blocks, kv_heads, d, bs]
};

// Logical block -> physical slot. The entry of sequence s, KV head h, logical block b is
// slots[s * seq_stride + h * head_stride + b]; head_stride 0 is one table shared by all heads.
struct PageTableView {
  const int32_t* slots = nullptr;  // [seqs, max_blocks] (x kv_heads where head_stride != 0); entries beyond a length: any
  int64_t seq_stride = 0;
  int64_t head_stride = 0;
};

inline constexpr int32_t kMinHeadDim = 32, kMaxHeadDim = 256;

// What a cache may hold. fp8 rounds to nearest even and saturates.
constexpr bool is_kv_dtype(DType t) { return t == DType::bf16 || t == DType::f16 || t == DType::f32 || is_fp8(t); }

struct KvView {
  void* k = nullptr;
  void* v = nullptr;
  DType dtype = DType::bf16;  // is_kv_dtype()
  KvLayout layout = KvLayout::hnd;
  int32_t block_size = 16;  // tokens, a power of two in [8, 256]
  int32_t kv_heads = 0;
  int32_t head_dim = 0;            // d, a multiple of 16 in [32, 256] (any multiple of 8 in ref)
  int64_t block_stride = 0;        // elements from a slot to the next, K and V alike
  int64_t head_stride = 0;         // elements from a KV head to the next
  int64_t token_stride = 0;        // hnd: elements from a token of a block to the next; 0: d
  const float* k_scale = nullptr;  // [kv_heads] or null (1), of fp8 alone: a key is what is stored times its head's scale
  const float* v_scale = nullptr;
  PageTableView table;

  constexpr int64_t tokens_apart() const { return token_stride ? token_stride : head_dim; }
};

// Paged attention over a Selection (docs/algorithms.md, "Paged attention").
// Sequence s owns query rows [q_indptr[s], q_indptr[s+1]); the last of them sits at position seq_len[s] - 1, the one
// before at seq_len[s] - 2, and so on; each row sees the keys at positions <= its own. A sequence may have no rows.
// out = softmax(soft_cap(q k^T * scale) + alibi) v over the selected keys; a row that sees no key gives out = 0 and
// lse = -inf: also a row of a sequence of length 0, which pads a batch (decode only). Keys beyond the row's position are never
// multiplied: NaN there changes nothing. (cuda's paged_prefill keeps to that for keys beyond the last row of a tile; a V that is
// NaN at a key which only later rows of the tile see reaches its earlier rows too.)
struct AttentionParams {
  const void* q = nullptr;   // [T, H, d], post-rope
  void* out = nullptr;       // [T, H, d]
  DType dtype = DType::f32;  // of q and out: f32, f16 or bf16
  float* lse = nullptr;      // [T, H] natural log of sum exp of the scaled, capped, biased scores; or null
  int32_t num_heads = 0;     // H, a multiple of kv.kv_heads
  // Heads from one row of q, out and lse to the next; 0: num_heads. Larger where a call takes a range of the heads, whose first
  // one q, out, lse (and the arrays by head) then point to: its bits are those of the whole call. (cuda's paged_decode takes all
  // heads.)
  int32_t q_heads = 0;
  int32_t rows = 0;  // T = q_indptr[num_seqs]
  int32_t num_seqs = 0;
  const int32_t* q_indptr = nullptr;  // [num_seqs + 1]
  const int32_t* seq_len = nullptr;   // [num_seqs] keys of the sequence, its own rows included; 0: its rows see nothing
  int64_t max_len = 0;                // >= every seq_len; 0: OpsLimits::max_len
  KvView kv;
  float scale = 1.0f;                    // usually d^-0.5
  float soft_cap = 0.0f;                 // 0: none; else c * tanh(x / c), before bias and masks
  int32_t window = 0;                    // 0: none; else a row at position p sees keys in (p - window, p]
  const float* alibi_slopes = nullptr;   // [H] or null; adds slope * (key_pos - query_pos)
  const Selection* selection = nullptr;  // null or Kind::all: dense
  // K and V that come while the call runs: a block is read when the gate lets it through. Dense paged_prefill of one sequence on a
  // host only; null: all are there.
  const KeyGate* gate = nullptr;
  // Counts what was read: adds, for each row, the (key, KV head) pairs whose K and V were loaded for it (paged_decode) or its
  // (key, query head) pairs (paged_prefill). cuda only (elsewhere the host sees the Selection itself); null: not counted.
  int64_t* keys_read = nullptr;  // [T]

  int64_t heads_per_row() const { return q_heads ? q_heads : num_heads; }
};

// Attention over each partition of a row's keys by itself: the first of the two kernels of vLLM's paged_attention_v2. Partition i
// of a row covers keys [i * partition_size, (i + 1) * partition_size) up to the row's own; of one without keys exp_sums is 0,
// max_logits -inf and tmp_out any. Partitions merge in any number and from anywhere (merge_partitions).
struct PartitionedAttentionParams {
  AttentionParams attention;     // decode rows, dense, without a window; out, lse and keys_read are not written
  int32_t partition_size = 512;  // tokens, a multiple of 16
  int32_t max_partitions = 0;    // >= ceil(seq_len / partition_size) of every sequence
  float* exp_sums = nullptr;     // out [T, H, max_partitions] sum of exp(score - max_logits)
  float* max_logits = nullptr;   // out [T, H, max_partitions] the largest score, or a number near it; natural units
  float* tmp_out = nullptr;      // out [T, H, max_partitions, d] what attention over the partition alone gives
};

// The second: attention over the union of partitions. None with a key: out 0, lse -inf.
struct MergePartitionsParams {
  const float* exp_sums = nullptr;    // [T, H, partitions]
  const float* max_logits = nullptr;  // [T, H, partitions]
  const float* tmp_out = nullptr;     // [T, H, partitions, d]
  int32_t partitions = 0;
  int32_t rows = 0;  // T
  int32_t num_heads = 0;
  int32_t head_dim = 0;      // a multiple of 4
  void* out = nullptr;       // [T, H, d]
  DType dtype = DType::f32;  // of out: f32, f16 or bf16
  float* lse = nullptr;      // [T, H] natural log; or null
};

// Attention over contiguous keys and values that are not in the cache. Sequence s owns query rows [q_indptr[s],
// q_indptr[s+1]) and keys [kv_indptr[s], kv_indptr[s+1]); either may be empty. Causal: its last row sees all its keys,
// the row before all but the last, and so on; else every row sees all of them (a chunk of the prefix). A head's key may
// end in a part that all heads share. A row that sees no key gives out = 0 and lse = -inf. Keys are multiplied in chunks: a V
// that is NaN at a key which only later rows see reaches the rows before it.
struct RaggedAttentionParams {
  const float* q = nullptr;  // row t, head h at q + t * q_stride + h * (k_dim + shared_dim)
  int64_t q_stride = 0;      // elements
  const float* k = nullptr;  // key j, head h at k + j * k_stride + h * k_head_stride: k_dim elements
  int64_t k_stride = 0, k_head_stride = 0;
  const float* k_shared = nullptr;  // [keys, shared_dim], or null where shared_dim is 0
  const float* v = nullptr;         // value j, head h at v + j * v_stride + h * v_head_stride: v_dim elements
  int64_t v_stride = 0, v_head_stride = 0;
  int32_t k_dim = 0, shared_dim = 0, v_dim = 0;
  int32_t num_heads = 0;
  int32_t rows = 0;  // T = q_indptr[num_seqs]
  int32_t num_seqs = 0;
  const int32_t* q_indptr = nullptr;   // [num_seqs + 1]
  const int32_t* kv_indptr = nullptr;  // [num_seqs + 1]
  bool causal = false;                 // no more rows than keys in a sequence that has keys
  float scale = 1.0f;
  float* out = nullptr;  // row t, head h at out + t * out_stride + h * v_dim
  int64_t out_stride = 0;
  float* lse = nullptr;  // row t, head h at lse + t * lse_stride + h; natural log; or null
  int64_t lse_stride = 0;
};

// Attention over the union of two disjoint sets of keys, from the results over each: with m = max(a, b) of the two lse,
// lse = m + ln(e^(a-m) + e^(b-m)) and out = out_a e^(a-lse) + out_b e^(b-lse). A side with lse -inf leaves the other
// exactly as it is. In place: a is replaced.
struct LseMergeParams {
  float* out = nullptr;  // row t, head h at out + t * out_stride + h * dim
  float* lse = nullptr;  // row t, head h at lse + t * lse_stride + h
  int64_t out_stride = 0, lse_stride = 0;
  const float* other_out = nullptr;  // [T, heads, dim]
  const float* other_lse = nullptr;  // [T, heads]
  int32_t rows = 0;                  // T
  int32_t num_heads = 0;
  int32_t dim = 0;
};

}  // namespace fovea
