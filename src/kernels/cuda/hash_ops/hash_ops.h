// Hash codes of vectors and Hamming scores of blocks on a GPU, as operations of their own (fovea/kernels/select.h).
#pragma once

#include <fovea/kernels/select.h>

#include <cuda_runtime_api.h>

namespace fovea::cuda {

void hash_encode(const HashEncodeParams& p, cudaStream_t stream);
void hamming_scores(const HammingScoresParams& p, cudaStream_t stream);

}  // namespace fovea::cuda
