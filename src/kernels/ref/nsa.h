// The original NSA (Native Sparse Attention): what its selected branch reads, from the scores of its compressed branch.
#pragma once

#include <cstdint>

namespace fovea::ref {

// Compressed items cover 32 tokens every 16, selection blocks 64: block b (0-based) overlaps items 4b-1 .. 4b+3, with the
// weights 1, 2, 2, 2, 1. out[g, b] is that sum of softmax probabilities, summed over the query heads of group g; items that do
// not exist count as 0.
void nsa_block_scores(const float* compressed,  // [kv_heads * group, items]
                      int32_t kv_heads, int32_t group, int32_t items, int32_t blocks,
                      float* out);  // [kv_heads, blocks]

}  // namespace fovea::ref
