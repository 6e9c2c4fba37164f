// One row over weights of 8 bits with scales apart.
#pragma once

#include <fovea/kernels/linear.h>

#include "kernels/cuda/launch.h"

namespace fovea::cuda::quant {

// p: up to WeightGroup::kMax weights, all fp8_e4m3 or all int8, of one width of groups; k a multiple of 32, data and x on multiples of
// 16. Nothing is rounded.
void bytes_gemv(const LinearParams& p, const Queue& queue);

}  // namespace fovea::cuda::quant
