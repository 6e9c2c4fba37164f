// Multi-head latent attention (MLA) over a paged latent cache. Sources: DeepSeek-V2 and -V3 (arXiv 2405.04434, 2412.19437)
// and the DeepseekV3 module of transformers. fovea/kernels.h has the conventions.
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

#include <fovea/kernels/attention.h>
#include <fovea/kernels/weight.h>
#include <fovea/selection.h>
#include <fovea/types.h>

#include <cstdint>

namespace fovea {

// The sizes of one model's MLA. latent: a multiple of 16, at most 512; rope: a multiple of 2, at most 128.
struct MlaShape {
  int32_t latent = 0;  // kv_lora_rank
  int32_t rope = 0;    // qk_rope_head_dim
  int32_t nope = 0;    // qk_nope_head_dim
  int32_t v = 0;       // v_head_dim
};

// RMSNorm of the latent, rope of q's and of the shared key's rope part, cache write.
struct MlaWriteParams {
  int32_t tokens = 0;  // T
  int32_t num_heads = 0;
  MlaShape shape;               // v is not used
  float* q = nullptr;           // [T, H, nope + rope] projection; out: its rope part rotated, in place
  const float* kv_a = nullptr;  // [T, latent + rope] projection
  const float* norm = nullptr;  // [latent] RMSNorm weight
  float norm_eps = 1e-6f;
  bool rope_interleaved = true;           // true: pairs (2i, 2i+1), as DeepSeek; false: (i, i + rope/2). Pairs stay where they are
  const float* cos = nullptr;             // [T, rope / 2], attention scaling included
  const float* sin = nullptr;             // [T, rope / 2]
  const int64_t* slot_mapping = nullptr;  // [T] slot * bs + offset; -1: do not write this token
  const KvView* kv = nullptr;             // the latent plane; its table is not used
};

// q_latent = W_UK^T q_nope of each head, q's rope part copied behind it.
struct MlaAbsorbParams {
  const float* q = nullptr;  // [T, H, nope + rope], post-rope
  WeightView kv_b;           // [H * (nope + v), latent], read in place
  int32_t rows = 0;          // T
  int32_t num_heads = 0;
  MlaShape shape;
  float* out = nullptr;  // [T, H, latent + rope]
};

// out = W_UV of each head times what mla_attend gave it.
struct MlaUnabsorbParams {
  const float* x = nullptr;  // [T, H, latent]
  WeightView kv_b;           // [H * (nope + v), latent]
  int32_t rows = 0;
  int32_t num_heads = 0;
  MlaShape shape;        // rope is not used
  float* out = nullptr;  // [T, H, v]
};

// Absorbed attention. Rows, positions and lengths as in AttentionParams; every head reads the same keys, so a Selection
// has HeadGroups::all (units of 1 token for DSA, of any size else). A row that sees no key gives out = 0 and lse = -inf,
// also a row of a sequence of length 0. Entries beyond a row's position are never multiplied. Scores and sums are
// float32; a row's bits depend on the row, its keys and H alone, never on other rows, their number or the threads.
struct MlaAttendParams {
  const float* q = nullptr;  // [T, H, latent + rope] of mla_absorb
  float* out = nullptr;      // [T, H, latent]
  float* lse = nullptr;      // [T, H] natural log of sum exp of the scaled scores; or null
  int32_t num_heads = 0;
  int32_t rows = 0;  // T = q_indptr[num_seqs]
  int32_t num_seqs = 0;
  const int32_t* q_indptr = nullptr;  // [num_seqs + 1]
  const int32_t* seq_len = nullptr;   // [num_seqs] keys of the sequence, its own rows included
  const KvView* kv = nullptr;         // the latent plane with its page table
  int32_t latent = 0;
  float scale = 1.0f;                    // (nope + rope)^-0.5, times mscale^2 with YaRN
  const Selection* selection = nullptr;  // null or Kind::all: dense
  // Counts what was read: adds, for each row, the entries that were loaded for it. cuda only; null: not counted.
  int64_t* keys_read = nullptr;  // [T]
};

// Entries of some tokens of every sequence, widened and parted, sequence by sequence: of its rows' own tokens, or of those before
// them the tokens [first, first + count), as far as they reach. A sequence without rows has none.
struct MlaGatherParams {
  const KvView* kv = nullptr;  // the latent plane with its page table
  int32_t num_seqs = 0;
  const int32_t* q_indptr = nullptr;  // [num_seqs + 1] rows of each sequence
  const int32_t* seq_len = nullptr;   // [num_seqs] its tokens, the rows' own included
  bool own = false;
  int32_t first = 0, count = 0;   // of what is before them
  int32_t tokens = 0;             // of all sequences
  int32_t latent = 0;
  int32_t* cu_lengths = nullptr;  // out [num_seqs + 1] where each sequence's tokens begin, and the end
  float* latent_out = nullptr;    // [tokens, latent]
  float* rope_out = nullptr;      // [tokens, rope]

  // Those of a sequence of `len` tokens, `rows` of them its rows' own: positions [first, end).
  struct Range {
    int32_t first, end;
  };
  constexpr Range range(int32_t rows, int32_t len) const {
    const int32_t before = len - rows;
    if (own) return {before, len};
    if (rows == 0 || first >= before) return {0, 0};
    return {first, count < before - first ? first + count : before};
  }
};

}  // namespace fovea
