// One or two rows over weights of 8 bits with scales apart.
#pragma once

#include <fovea/kernels/linear.h>

#include "kernels/cuda/launch.h"

namespace fovea::cuda::quant {

// fp8_e4m3 or int8 with one scale a row, or one for a power of two columns, 128 or more, of which rows are whole groups or halves.
bool takes_bytes(const LinearParams& p, const WeightView& w);

// p: up to WeightGroup::kMax weights of one type and one width of groups, which takes_bytes; data and x on multiples of 16. No weight is
// rounded, and x to 22 bits, but for what is below 2^-39 of the largest of 256 neighbours. Returns whether the result of a gated call
// is there.
bool bytes_gemv(const LinearParams& p, const Queue& queue);

}  // namespace fovea::cuda::quant
