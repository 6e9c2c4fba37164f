// SiLU times up, and the cosines and sines of rotary angles.
#pragma once

#include <fovea/kernels/elementwise.h>

#include "kernels/cuda/launch.h"

namespace fovea::cuda {

void silu_mul(const SiluMulParams& p, const Queue& queue);
void rope_angles(const RopeAnglesParams& p, const Queue& queue);

}  // namespace fovea::cuda
