// Which cache entries a dense prefill of a model with latent attention reads, in the chunks that ChunkedPrefixAttention takes
// (docs/algorithms.md, "DSA": the chunked prefix cache). The same for all layers of a pass.
#pragma once

#include "base/arena.h"
#include "model/chunked_prefix.h"
#include "model/forward.h"

#include <span>

namespace fovea {

// Sizes of the largest pass.
struct LatentPlanLimits {
  int32_t max_rows = 1;  // tokens of a pass
  int32_t max_seqs = 1;  // sequences of a pass
  int64_t max_len = 1;   // tokens of a sequence
  int32_t capacity = 1;  // tokens of one chunk, over all sequences; at least max_rows
};

struct LatentPlan {
  LatentChunk own;                      // the group's rows
  std::span<const LatentChunk> prefix;  // what lies before them
};

// Scratch that plan_latents() takes at most.
size_t latent_plan_bytes(const LatentPlanLimits& limits);

// With len = capacity / num_seqs, chunk c holds tokens [c len, (c + 1) len) of each sequence's prefix, as far as that reaches.
// slot_mapping [group.rows]. Views of the arena and of the group's arrays, which lie on the host.
LatentPlan plan_latents(const RowGroup& group, const int64_t* slot_mapping, int32_t block_size, const LatentPlanLimits& limits,
                        Arena& arena);

}  // namespace fovea
