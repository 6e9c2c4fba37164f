// Operations of DeepSeek-style models: multi-head latent attention (MLA) over a paged latent cache, and mixture of
// experts (MoE). Sources: DeepSeek-V2 and -V3 (arXiv 2405.04434, 2412.19437) and the DeepseekV3 module of transformers.
// The rules of fovea/ops.h hold: T token rows, H query heads, activations float32, pointers are device memory.
//
// MLA keeps one entry a token for all heads: a latent of `latent` elements after its RMSNorm, then `rope` elements that
// carry the position. With kv_b_proj's matrix [H * (nope + v), latent], of each head first W_UK (nope rows) and then W_UV
// (v rows), a head's key is [W_UK c, k_rope] and its value W_UV c. So
//
//     q . k = (W_UK^T q_nope) . c + q_rope . k_rope,       out = W_UV (sum of weight * c)
//
// "Absorbed" attention computes the right sides: every head reads the same entries, as MQA with a key of latent + rope
// and a value of its first `latent` elements (mla_absorb, mla_attend, mla_unabsorb). "Expanded" attention makes K and V
// of a chunk of the context and attends to them per head (mla_gather, linear, ragged_attend, lse_merge): fewer flops
// where many rows read the same keys.
//
// The plane `latent` is a KvView: k holds [num_blocks, bs, latent + rope], v is null (the value is part of k), kv_heads
// 1, head_dim latent + rope, layout hnd, dtype bf16, f16 or f32.
#pragma once

#include <fovea/types.h>

#include <cstdint>

namespace fovea {

struct KvView;
struct Selection;

// The sizes of one model's MLA. latent: a multiple of 16, at most 512; rope: a multiple of 2, at most 128.
struct MlaShape {
  int32_t latent = 0;  // kv_lora_rank
  int32_t rope = 0;    // qk_rope_head_dim
  int32_t nope = 0;    // qk_nope_head_dim
  int32_t v = 0;       // v_head_dim
};

// RMSNorm of the latent, rope of q's and of the shared key's rope part, cache write.
struct MlaWriteParams {
  int32_t tokens = 0;            // T
  int32_t num_heads = 0;
  MlaShape shape;                // v is not used
  float* q = nullptr;            // [T, H, nope + rope] projection; out: its rope part rotated, in place
  const float* kv_a = nullptr;   // [T, latent + rope] projection
  const float* norm = nullptr;   // [latent] RMSNorm weight
  float norm_eps = 1e-6f;
  bool rope_interleaved = true;  // true: pairs (2i, 2i+1), as DeepSeek; false: (i, i + rope/2). Pairs stay where they are
  const float* cos = nullptr;    // [T, rope / 2], attention scaling included
  const float* sin = nullptr;    // [T, rope / 2]
  const int64_t* slot_mapping = nullptr;  // [T] slot * bs + offset; -1: do not write this token
  const KvView* kv = nullptr;    // the latent plane; its table is not used
};

// q_latent = W_UK^T q_nope of each head, q's rope part copied behind it.
struct MlaAbsorbParams {
  const float* q = nullptr;     // [T, H, nope + rope], post-rope
  const void* kv_b = nullptr;   // [H * (nope + v), latent] as stored, read in place
  DType dtype = DType::bf16;    // of kv_b: bf16, f16, f32
  int32_t rows = 0;             // T
  int32_t num_heads = 0;
  MlaShape shape;
  float* out = nullptr;         // [T, H, latent + rope]
};

// out = W_UV of each head times what mla_attend gave it.
struct MlaUnabsorbParams {
  const float* x = nullptr;     // [T, H, latent]
  const void* kv_b = nullptr;   // [H * (nope + v), latent]
  DType dtype = DType::bf16;
  int32_t rows = 0;
  int32_t num_heads = 0;
  MlaShape shape;               // rope is not used
  float* out = nullptr;         // [T, H, v]
};

// Absorbed attention. Rows, positions and lengths as in AttentionParams; every head reads the same keys, so a Selection
// has HeadGroups::all (units of 1 token for DSA, of any size else). A row that sees no key gives out = 0 and lse = -inf,
// also a row of a sequence of length 0. Entries beyond a row's position are never multiplied. Scores and sums are
// float32; a row's bits depend on the row, its keys and H alone, never on other rows, their number or the threads.
struct MlaAttendParams {
  const float* q = nullptr;           // [T, H, latent + rope] of mla_absorb
  float* out = nullptr;               // [T, H, latent]
  float* lse = nullptr;               // [T, H] natural log of sum exp of the scaled scores; or null
  int32_t num_heads = 0;
  int32_t rows = 0;                   // T = q_indptr[num_seqs]
  int32_t num_seqs = 0;
  const int32_t* q_indptr = nullptr;  // [num_seqs + 1]
  const int32_t* seq_len = nullptr;   // [num_seqs] keys of the sequence, its own rows included
  const KvView* kv = nullptr;         // the latent plane with its page table
  int32_t latent = 0;
  float scale = 1.0f;                 // (nope + rope)^-0.5, times mscale^2 with YaRN
  const Selection* selection = nullptr;  // null or Kind::all: dense
};

// Entries of single tokens, widened and parted, in the order of `slots`.
struct MlaGatherParams {
  const KvView* kv = nullptr;       // the latent plane; its table is not used
  const int32_t* slots = nullptr;   // [tokens] slot * bs + offset
  int32_t tokens = 0;
  int32_t latent = 0;
  float* latent_out = nullptr;      // [tokens, latent]
  float* rope_out = nullptr;        // [tokens, rope]
};

// Attention over contiguous keys and values that are not in the cache. Sequence s owns query rows [q_indptr[s],
// q_indptr[s+1]) and keys [kv_indptr[s], kv_indptr[s+1]); either may be empty. Causal: its last row sees all its keys,
// the row before all but the last, and so on; else every row sees all of them (a chunk of the prefix). A head's key may
// end in a part that all heads share. A row that sees no key gives out = 0 and lse = -inf. Keys are multiplied in chunks: a V
// that is NaN at a key which only later rows see reaches the rows before it.
struct RaggedAttentionParams {
  const float* q = nullptr;         // row t, head h at q + t * q_stride + h * (k_dim + shared_dim)
  int64_t q_stride = 0;             // elements
  const float* k = nullptr;         // key j, head h at k + j * k_stride + h * k_head_stride: k_dim elements
  int64_t k_stride = 0, k_head_stride = 0;
  const float* k_shared = nullptr;  // [keys, shared_dim], or null where shared_dim is 0
  const float* v = nullptr;         // value j, head h at v + j * v_stride + h * v_head_stride: v_dim elements
  int64_t v_stride = 0, v_head_stride = 0;
  int32_t k_dim = 0, shared_dim = 0, v_dim = 0;
  int32_t num_heads = 0;
  int32_t rows = 0;                 // T = q_indptr[num_seqs]
  int32_t num_seqs = 0;
  const int32_t* q_indptr = nullptr;   // [num_seqs + 1]
  const int32_t* kv_indptr = nullptr;  // [num_seqs + 1]
  bool causal = false;              // no more rows than keys in a sequence that has keys
  float scale = 1.0f;
  float* out = nullptr;             // row t, head h at out + t * out_stride + h * v_dim
  int64_t out_stride = 0;
  float* lse = nullptr;             // row t, head h at lse + t * lse_stride + h; natural log; or null
  int64_t lse_stride = 0;
};

// Attention over the union of two disjoint sets of keys, from the results over each: with m = max(a, b) of the two lse,
// lse = m + ln(e^(a-m) + e^(b-m)) and out = out_a e^(a-lse) + out_b e^(b-lse). A side with lse -inf leaves the other
// exactly as it is. In place: a is replaced.
struct LseMergeParams {
  float* out = nullptr;            // row t, head h at out + t * out_stride + h * dim
  float* lse = nullptr;            // row t, head h at lse + t * lse_stride + h
  int64_t out_stride = 0, lse_stride = 0;
  const float* other_out = nullptr;  // [T, heads, dim]
  const float* other_lse = nullptr;  // [T, heads]
  int32_t rows = 0;                // T
  int32_t num_heads = 0;
  int32_t dim = 0;
};

enum class ExpertScoring : uint8_t { sigmoid, softmax };

// Chooses experts. scores = sigmoid or softmax of x Wg^T, in float32; choice on score + bias: the experts divide into
// `groups` of equal size, a group's score is the sum of its `group_top` best, the best topk_groups groups stay and the
// best top_k experts of these are chosen. Ties go to the lower index, of groups and of experts. Weights are the unbiased
// scores, over their sum + 1e-20 where `normalise`, times `scaling`.
struct MoeRouteParams {
  const float* x = nullptr;      // [T, hidden]
  int32_t rows = 0;
  int32_t hidden = 0;
  const void* gate = nullptr;    // Wg [experts, hidden]
  DType dtype = DType::bf16;     // of gate: bf16, f16, f32
  const float* bias = nullptr;   // [experts] e_score_correction_bias, or null
  int32_t experts = 0;           // a multiple of groups
  int32_t groups = 1;            // n_group
  int32_t topk_groups = 1;       // topk_group
  int32_t group_top = 2;         // experts that make a group's score: 2 in DeepSeek-V3, 1 in V2; at most a group's size
  int32_t top_k = 1;             // num_experts_per_tok, at most topk_groups * experts / groups
  ExpertScoring scoring = ExpertScoring::sigmoid;
  bool normalise = true;         // norm_topk_prob
  float scaling = 1.0f;          // routed_scaling_factor
  int32_t* ids = nullptr;        // out [T, top_k], the best first
  float* weights = nullptr;      // out [T, top_k]
};

// out[t] = sum over the row's experts, in ascending order of their ids, of weight * down(silu(gate(x)) * up(x)). An
// expert multiplies its rows together, so its weights are read once; experts that no row chose are not read. Products
// are Ops::linear's: the shapes [inter, hidden] and [hidden, inter] are announced likewise, and bits depend on the
// other rows only as far as linear's do.
struct MoeExpertsParams {
  const float* x = nullptr;          // [T, hidden]
  float* out = nullptr;              // [T, hidden], not x
  int32_t rows = 0;
  int32_t hidden = 0;
  int32_t inter = 0;                 // moe_intermediate_size
  int32_t experts = 0;
  int32_t top_k = 0;
  const int32_t* ids = nullptr;      // [T, top_k] in [0, experts), different ones in a row
  const float* weights = nullptr;    // [T, top_k]
  const void* const* gate = nullptr;  // [experts] of [inter, hidden]; these three arrays are host memory
  const void* const* up = nullptr;    // [experts] of [inter, hidden]
  const void* const* down = nullptr;  // [experts] of [hidden, inter]
  DType dtype = DType::bf16;         // of all weights: bf16, f16, f32
};

// The largest of what MoE calls will see. Part of OpsLimits, as MlaShape is.
struct MoeLimits {
  int32_t experts = 0, top_k = 0, hidden = 0, inter = 0;
};

}  // namespace fovea
