// What the kernels that score summaries are launched with.
#pragma once

#include <fovea/kernels/select.h>

#include <cuda_runtime_api.h>

#include <cstdint>

namespace fovea::cuda::summary {

struct ScoreArgs {
  SummarySelectParams p;
  int32_t first_row = 0;
  int32_t rows = 0;
  uint32_t* ranks = nullptr;  // [rows, kv_heads, pitch]: the better a block, the lower
  int64_t pitch = 0;          // >= the blocks of every row
};

struct RankArgs {
  BlockTopkParams p;
  int32_t first_row = 0;
  int32_t rows = 0;
  uint32_t* ranks = nullptr;  // [rows, lists, pitch]
  int64_t pitch = 0;
};

void score_summaries(const ScoreArgs& a, cudaStream_t stream);
void rank_scores(const RankArgs& a, cudaStream_t stream);

}  // namespace fovea::cuda::summary
