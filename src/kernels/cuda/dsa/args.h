// What the kernels of the DSA indexer's choice are launched with.
#pragma once

#include <fovea/kernels/indexer.h>

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/dsa/config.h"
#include "kernels/cuda/prefill/tensor_map.h"

namespace fovea::cuda::dsa {

// List (row - first_row) * splits + split belongs to one range of a row's keys.
struct ScoreArgs {
  IndexTopkParams p;
  int32_t first_row = 0;
  Pass pass;
  int32_t capacity = 0;
  uint64_t* lists = nullptr;  // [lists, capacity] candidates in any order
  int32_t* counts = nullptr;  // [lists]
};

// Scores the keys of rows longer than topk, by fused multiply-add in the order that the contract says. With p.logits they go
// to p.logits [pass.rows, max_len], else into lists. prepare_fma: once, for keys of up to `dim`.
cudaError_t prepare_fma(int32_t dim);
void score_fma(const ScoreArgs& a, cudaStream_t stream);

// The same on tensor cores, for the ways that choose_way() gives them.
cudaError_t prepare_wgmma();
void score_wgmma(const ScoreArgs& a, const Way& way, prefill::EncodeTensorMap encode, cudaStream_t stream);

// The rows' lists from their candidates, or from p.logits.
void choose(const ScoreArgs& a, cudaStream_t stream);

}  // namespace fovea::cuda::dsa
