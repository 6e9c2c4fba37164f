// ChunkedPrefixAttention: expanded MLA attention over a prefix of any length in bounded memory.
//
// The prefix is read chunk by chunk. A chunk's latents are gathered from the cache and expanded through kv_b_proj to keys
// and values of some heads at a time; all query rows attend to them, and the result is merged by lse into what the chunks
// before gave. Memory is that of one chunk, or of one group of heads of it where that is more than `expanded_bytes`; the
// flops are those of attention in one piece. Which tokens make a chunk is the caller's plan.
#pragma once

#include "device/device.h"
#include "kernels/ops/ops.h"

#include <span>

namespace fovea {

// Tokens [first, first + count) of every sequence's prefix, as far as that reaches.
struct LatentChunk {
  int32_t first = 0;
  int32_t count = 0;
  int32_t tokens = 0;  // of all sequences
};

struct ChunkedPrefixConfig {
  int32_t num_heads = 0;  // H
  MlaShape shape;
  int32_t max_rows = 0;                         // query rows of a run
  int32_t max_seqs = 0;                         // sequences of a run
  int32_t max_chunk_tokens = 0;                 // of any chunk, the rows' own tokens among them
  int64_t expanded_bytes = int64_t{256} << 20;  // of keys and values at once; more only if one head of a chunk needs more
};

struct ChunkedPrefixParams {
  const float* q = nullptr;  // [T, H, nope + rope], post-rope
  float* out = nullptr;      // [T, H, v]
  float* lse = nullptr;      // [T, H] natural log
  int32_t rows = 0;          // T
  int32_t num_seqs = 0;
  const int32_t* q_indptr = nullptr;  // [num_seqs + 1] rows of each sequence
  const int32_t* seq_len = nullptr;   // [num_seqs] tokens of each, its rows included
  const KvView* kv = nullptr;         // the latent plane with its page table: the rows' own entries are written
  WeightView kv_b;                    // [H * (nope + v), latent]
  float scale = 1.0f;
  std::span<const LatentChunk> prefix;  // what lies before the rows, in any order; attended whole, their own tokens causally
};

class ChunkedPrefixAttention {
 public:
  // Takes all memory. Errors: invalid_argument for a size below 1, naming it; resource_exhausted.
  static Result<ChunkedPrefixAttention> create(const ChunkedPrefixConfig& config, Device& device);

  // The expansion is a linear layer [weight_rows(), latent] of at most `max_linear_rows` rows at a time: OpsLimits covers it.
  void run(const ChunkedPrefixParams& p, int32_t max_linear_rows, Ops& ops, Stream& stream);

  int32_t heads_per_pass() const { return heads_; }  // divides H
  int32_t weight_rows() const { return heads_ * (config_.shape.nope + config_.shape.v); }

 private:
  void gather(const ChunkedPrefixParams& p, const LatentChunk& chunk, bool own, Ops& ops, Stream& stream);
  void attend(const ChunkedPrefixParams& p, bool own, int32_t head, Ops& ops, Stream& stream);
  void expand(const ChunkedPrefixParams& p, int32_t tokens, int32_t head, int32_t max_rows, Ops& ops, Stream& stream);

  ChunkedPrefixConfig config_;
  int32_t heads_ = 0;
  Buffer cu_lengths_;  // int32 [max_seqs + 1] where each sequence's tokens of a chunk begin
  Buffer latents_;     // [max_chunk_tokens, latent]
  Buffer ropes_;       // [max_chunk_tokens, rope]
  Buffer expanded_;    // [max_chunk_tokens, heads_, nope + v]
  Buffer out_;         // [max_rows, heads_, v] of one chunk of the prefix
  Buffer lse_;         // [max_rows, heads_]
};

}  // namespace fovea
