// Which cache entries a dense prefill of a model with latent attention reads before its rows' own, in the chunks that
// ChunkedPrefixAttention takes (docs/algorithms.md, "DSA": the chunked prefix cache). The same for all layers of a pass.
#pragma once

#include "model/chunked_prefix.h"
#include "model/forward.h"

#include <vector>

namespace fovea {

// Sizes of the largest pass.
struct LatentPlanLimits {
  int32_t max_rows = 1;  // tokens of a pass
  int32_t max_seqs = 1;  // sequences of a pass
  int64_t max_len = 1;   // tokens of a sequence
  int32_t capacity = 1;  // tokens of one chunk, over all sequences; at least max_rows
};

// Chunks of a plan at most.
int64_t latent_chunks_at_most(const LatentPlanLimits& limits);

// With len = capacity / num_seqs, chunk c holds tokens [c len, (c + 1) len) of each sequence's prefix, as far as that reaches.
void plan_latents(const RowGroup& group, const LatentPlanLimits& limits, std::vector<LatentChunk>* chunks);

}  // namespace fovea
