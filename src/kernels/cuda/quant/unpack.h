// Quantised weights as floats.
#pragma once

#include <fovea/kernels/elementwise.h>
#include <fovea/kernels/weight.h>

#include "kernels/cuda/launch.h"

namespace fovea::cuda::quant {

// All of w, row after row, as dtype: bf16 or f32.
void unpack(const WeightView& w, DType dtype, void* to, const Queue& queue);

// embed() of a quantised table.
void embed(const EmbedParams& p, const Queue& queue);

}  // namespace fovea::cuda::quant
