// XAttention's two published operations, with the scores of cells in memory between them (fovea/kernels/xattention.h).
#pragma once

#include <fovea/kernels/xattention.h>

#include "base/thread_pool.h"

namespace fovea::cpu {

void flat_group_gemm_fuse_reshape(const FlatGroupGemmParams& p, ThreadPool& pool);
void softmax_fuse_block_sum(const SoftmaxBlockSumParams& p, ThreadPool& pool);

}  // namespace fovea::cpu
