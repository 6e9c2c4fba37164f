// Scores of the DSA indexer and the choice of tokens, scalar, each step a function of its own.
#pragma once

#include <cstdint>

#include "kernels/ops/dsa.h"

namespace fovea::ref {

// logits[r, s] of rows [first, first + rows) of p: the score of key s for s < row_len, -inf from there to `stride`. Masked is
// never 0: scores can be negative.
void index_logits(const IndexTopkParams& p, int32_t first, int32_t rows, float* logits, int64_t stride);

// Positions of the min(topk, len) largest of scores[0, len), ascending; ties to the lower position; NaN below -inf.
// Returns how many.
int32_t topk_positions(const float* scores, int32_t len, int32_t topk, int32_t* positions);

// Entry for `position` of row r in another space than position.
struct IndexMap {
  IndexSpace space = IndexSpace::slot;
  const int32_t* row_seq = nullptr;
  const int32_t* block_table = nullptr;
  int64_t table_stride = 0;
  int32_t block_size = 16;
  const int32_t* ragged_start = nullptr;
  int32_t operator()(int32_t row, int32_t position) const;
};

// Writes row r's list in the space of `map`, -1 after its `count` entries.
void write_mapped_row(const IndexMap& map, int32_t row, const int32_t* positions, int32_t count, const TopkIndices& out);
// The map of the fused transform.
IndexMap fused_map(const IndexTopkParams& p);

// As kernels/ops/dsa.h states them. Without `logits`, index_topk takes memory of its own for one row.
void index_topk(const IndexTopkParams& p);
void index_transform(const IndexTransformParams& p);
// Rows of a chunk of the materialised form: as many as p.logits has room for, at least one.
int32_t logits_rows_at_once(const IndexTopkParams& p);
void check_index_topk(const IndexTopkParams& p);

}  // namespace fovea::ref
