// Products of some rows on tensor cores: one pass over bf16 weights at memory speed, a whole group in one
// launch.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/ops/linear.h"

namespace fovea::cuda {

inline constexpr int kSkinnyRowsMax = 16;

// At most kSkinnyRowsMax rows, on vectors (gemv.h), all weights bf16. x is rounded to bf16, sums are float32.
void skinny_gemm(const LinearParams& p, const Queue& queue);

}  // namespace fovea::cuda
