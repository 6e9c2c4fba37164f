// Scores of blocks by their summaries. Chosen at run time for the CPU.
#pragma once

#include <fovea/kernels/select.h>

#include <cstdint>

namespace fovea::cpu {

// The queries of one row and KV head against the blocks of its sequence.
struct SummaryScan {
  BlockSummary summary = BlockSummary::mean;
  const float* queries = nullptr;         // [query_count, d]
  const uint64_t* query_codes = nullptr;  // [query_count, words]: mean_code
  int query_count = 0;
  int head_dim = 0;
  int words = 0;
  const float* plane = nullptr;     // of this KV head; that of block b begins at slots[b] * stride
  const uint64_t* codes = nullptr;  // likewise
  int64_t stride = 0;               // elements from a block to the next
  const int32_t* slots = nullptr;   // of the row's sequence and KV head
  float* scores = nullptr;          // out, by logical block; NaN becomes -inf
};

// Scores of blocks [begin, end).
void summary_scan(const SummaryScan& scan, int32_t begin, int32_t end);

}  // namespace fovea::cpu
