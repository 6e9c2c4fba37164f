// XAttention's two published operations, with the scores of cells in memory between them (fovea/kernels/xattention.h).
#pragma once

#include <fovea/kernels/xattention.h>

#include <cuda_runtime_api.h>

namespace fovea::cuda {

void flat_group_gemm_fuse_reshape(const FlatGroupGemmParams& p, cudaStream_t stream);
void softmax_fuse_block_sum(const SoftmaxBlockSumParams& p, cudaStream_t stream);

}  // namespace fovea::cuda
