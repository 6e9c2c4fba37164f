// Whole arrays from one float type to another.
#pragma once

#include <cstdint>

#include "kernels/cuda/launch.h"

namespace fovea::cuda {

// to[i] = from[i], rounded to nearest even; `to` holds bf16.
void round_to_bf16(const float* from, void* to, int64_t count, const Queue& queue);

// to[i] = from[i]; `from` holds f16.
void widen_f16(const void* from, float* to, int64_t count, const Queue& queue);

}  // namespace fovea::cuda
