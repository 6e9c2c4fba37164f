// RMSNorm with the residual addition before it.
#pragma once

#include <fovea/ops.h>

#include "kernels/cuda/launch.h"

namespace fovea::cuda {

void rms_norm(const RmsNormParams& p, const Queue& queue);

}  // namespace fovea::cuda
