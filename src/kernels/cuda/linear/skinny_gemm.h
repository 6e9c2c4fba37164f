// Products of some rows on tensor cores: one pass over bf16 weights at memory speed, a whole group in one
// launch.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/cuda/linear/config.h"

namespace fovea::cuda {

// At most kSkinnyRowsMax rows, on vectors (LinearShape), all weights bf16. x is rounded to bf16, sums are float32.
void skinny_gemm(const LinearParams& p, const Queue& queue);

}  // namespace fovea::cuda
