// Sampling of tokens from logits. fovea/kernels.h has the conventions.
#pragma once

#include <cstdint>

namespace fovea {

// One token for each row of logits. Steps in transformers' order: repetition penalty (a token seen before: logit > 0 ? /
// penalty : * penalty), temperature, top_k, top_p (the least head of the ranking whose mass reaches top_p; the first
// always stays), min_p (weight relative to the most likely). Then the kept tokens are walked in ascending id until their
// weights exceed uniform * (sum of all). Ranking: by logit, ties to the lower id. temperature 0: the first of the ranking.
struct SampleParams {
  const float* logits = nullptr;  // [.., vocab], unchanged
  int32_t rows = 0;
  int32_t vocab = 0;
  const float* temperature = nullptr;         // [rows], >= 0
  const int32_t* top_k = nullptr;             // [rows], 0: all
  const float* top_p = nullptr;               // [rows], in (0, 1]
  const float* min_p = nullptr;               // [rows], in [0, 1)
  const float* repetition_penalty = nullptr;  // [rows], 1: none
  const float* uniform = nullptr;             // [rows], in [0, 1)
  const int32_t* row_index = nullptr;         // [rows] row of logits (n answers share one), or null: row r
  // Tokens that occurred so far, any order, repeats allowed: history[history_indptr[r]..history_indptr[r+1]). Null: no
  // row has a penalty.
  const int32_t* history = nullptr;
  const int32_t* history_indptr = nullptr;  // [rows + 1]
  int32_t* tokens = nullptr;                // out [rows]
};

}  // namespace fovea
