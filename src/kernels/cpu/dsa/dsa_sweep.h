// The SIMD pieces of the DSA indexer's choice: score some query rows against a range of index keys, and keep each row's
// best. Chosen at run time for the CPU; docs/dsa.md says why they look so.
#pragma once

#include <fovea/kernels/indexer.h>

#include <cstdint>

namespace fovea::cpu {

inline constexpr int32_t kIndexPanel = 48;        // most keys scored at once
inline constexpr int32_t kIndexListPadding = 64;  // entries that a candidate list needs beyond its capacity

// A score as an int32 of the same order: a NaN lowest, both zeros equal.
using IndexRank = int32_t;

// The keys of one row that may be among its best, in ascending position.
struct IndexCandidates {
  IndexRank* ranks = nullptr;    // [capacity + kIndexListPadding]
  int32_t* positions = nullptr;  // likewise
  int32_t capacity = 0;          // > topk
  int32_t count = 0;
  bool bounded = false;  // `bound` holds: topk candidates are at least it
  float bound = 0;       // a later key enters only above it
};

// Rows of one sequence against its keys [begin, end), as far as each row sees them.
struct IndexSweep {
  const float* q = nullptr;        // [rows, heads, dim]
  const float* weights = nullptr;  // [rows, heads]
  int32_t rows = 0;
  int32_t heads = 0;
  const int32_t* row_len = nullptr;  // [rows] 0: the row is left out
  IndexKeysView keys;
  int32_t seq = 0;  // row of the block table
  int32_t begin = 0, end = 0;
  float* scratch = nullptr;  // [index_scratch_floats], 64-byte aligned
  // One of the two outcomes:
  IndexCandidates* candidates = nullptr;  // [rows], count 0 at first
  int32_t topk = 0;
  float* logits = nullptr;  // [rows, logits_stride] scores at [position]; what a row does not see is left alone
  int64_t logits_stride = 0;
};

int64_t index_scratch_floats(int32_t rows, int32_t heads, int32_t dim);

void index_sweep(const IndexSweep& sweep);

// Keeps exactly the min(topk, count) best, ties to the lower index.
void index_keep(IndexCandidates& candidates, int32_t topk);

}  // namespace fovea::cpu
