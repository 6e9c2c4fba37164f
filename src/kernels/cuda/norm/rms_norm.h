// RMSNorm with the residual addition before it.
#pragma once

#include <fovea/kernels/elementwise.h>

#include "kernels/cuda/launch.h"

namespace fovea::cuda {

void rms_norm(const RmsNormParams& p, const Queue& queue);

}  // namespace fovea::cuda
