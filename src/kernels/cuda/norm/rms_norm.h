// RMSNorm with the residual addition before it.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/ops/elementwise.h"

namespace fovea::cuda {

void rms_norm(const RmsNormParams& p, const Queue& queue);

}  // namespace fovea::cuda
