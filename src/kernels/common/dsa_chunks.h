// How the DSA indexer and its consumers cut long work into pieces: plans only, from plain numbers (docs/dsa.md).
#pragma once

#include <cstdint>

namespace fovea {

// SGLang's rule for a float matrix of q rows by k keys: never below 8,000,000 elements; else where twice its bytes exceed
// the free memory, or it alone three tenths of all.
bool should_chunk_mqa_logits(int64_t q, int64_t k, int64_t free_bytes, int64_t total_bytes);
// Rows of a chunk: half of the free memory, at least one row.
int64_t mqa_logits_chunk_rows(int64_t k, int64_t free_bytes);

struct IndexWork {
  int64_t rows = 0;  // query rows of the call
  int64_t keys = 0;  // of the longest row
  int64_t topk = 0;
  int64_t blocks = 0;  // entries of one row of the page table; 0: none is copied (RAGGED)
  int64_t lists = 1;   // lists of indices a row gets: 1, or 2 where a transformed one stands beside the positions
};

struct IndexChunkPlan {
  int64_t chunk_rows = 0;    // rows of one chunk; `rows` where the call is not cut
  int64_t logits_bytes = 0;  // of one chunk
  int64_t index_bytes = 0;   // of all rows: lists and counts
  int64_t table_bytes = 0;   // of one chunk: in PAGED form each row is a sequence of its own, with a copy of its table row
  int64_t total_bytes() const { return logits_bytes + index_bytes + table_bytes; }
};

// The rule above with everything that the call takes counted: the lists come off the free memory first, and a row costs its
// logits and its copy of the page table.
IndexChunkPlan plan_index_chunks(const IndexWork& work, int64_t free_bytes, int64_t total_bytes);

inline constexpr int64_t kPrefixChunkCapacity = 131072;  // tokens of one chunk of a prefix over the whole batch

}  // namespace fovea
