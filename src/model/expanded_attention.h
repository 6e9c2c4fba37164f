// Dense latent attention of prefill rows in its expanded form: keys and values of every head are made of the cached latents,
// a bounded piece of the context at a time, and each piece's result is merged by log-sum-exp. Memory does not grow with the
// context (the chunked prefix cache of docs/algorithms.md, "DSA"). Many rows share what a piece costs to make, and a product
// of nope + rope and v numbers is then cheaper than the absorbed form's two of kv_lora_rank.
#pragma once

#include "base/arena.h"
#include "model/checkpoint.h"
#include "model/forward.h"

#include <fovea/ops.h>

namespace fovea {

class ExpandedAttention {
 public:
  // max_tokens: rows of the largest pass, and tokens of the largest piece.
  ExpandedAttention(const MlaShape& shape, int32_t num_heads, float scale, int32_t max_tokens)
      : shape_(shape), heads_(num_heads), scale_(scale), max_tokens_(max_tokens) {}

  size_t workspace_bytes() const;
  void take_workspace(Arena& arena);  // once a pass

  // q [rows, H, nope + rope], post-rope, and out [rows, H, v] of the group's rows, whose own entries lie in the cache
  // already. slot_mapping [rows]. The device is the host.
  void attend(const RowGroup& group, const WeightMatrix& kv_b, const float* q, const int64_t* slot_mapping, const KvView& kv,
              float* out, Ops& ops, Stream& stream) const;

 private:
  struct Scratch {
    int32_t* slots;     // [max_tokens]
    int32_t* indptr;    // [max_tokens + 1]
    float* latent;      // [max_tokens, kv_lora_rank]
    float* rope;        // [max_tokens, rope]
    float* expanded;    // [max_tokens, H, nope + v]
    float* lse;         // [max_tokens, H]
    float* other_out;   // [max_tokens, H, v]
    float* other_lse;   // [max_tokens, H]
  };

  void own_rows(const RowGroup& group, const int64_t* slot_mapping) const;
  int32_t prefix_piece(const RowGroup& group, int32_t block_size, int32_t from, int32_t length) const;
  void attend_piece(const RowGroup& group, const WeightMatrix& kv_b, const float* q, const KvView& kv, bool causal, float* out,
                    float* lse, Ops& ops, Stream& stream) const;

  const MlaShape shape_;
  const int32_t heads_;
  const float scale_;
  const int32_t max_tokens_;
  Scratch s_{};
};

}  // namespace fovea
