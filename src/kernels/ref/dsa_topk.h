// Scores of the DSA indexer and the choice of tokens, scalar, each step a function of its own.
#pragma once

#include <fovea/kernels/indexer.h>

#include <cstdint>

namespace fovea::ref {

// logits[r, s] of rows [first, first + rows) of p: the score of key s for s < row_len, -inf from there to `stride`. Masked is
// never 0: scores can be negative.
void index_logits(const IndexTopkParams& p, int32_t first, int32_t rows, float* logits, int64_t stride);

// Positions of the min(topk, len) largest of scores[0, len), ascending; ties to the lower position; NaN below -inf.
// Returns how many.
int32_t topk_positions(const float* scores, int32_t len, int32_t topk, int32_t* positions);

// As fovea/kernels/indexer.h states them. Without `logits`, index_topk takes memory of its own for one row.
void index_topk(const IndexTopkParams& p);
void index_transform(const IndexTransformParams& p);

}  // namespace fovea::ref
