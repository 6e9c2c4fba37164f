// Products of few rows with quantised weights, read once as they lie.
#pragma once

#include <fovea/kernels/linear.h>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/quant/config.h"

namespace fovea::cuda::quant {

// p: weights of any types but plain ones, k a multiple of 32, data on multiples of 16; at most rows_max(exact) rows. exact: float32
// activations, else rounded to bf16, of one or two rows to 15 bits of the largest that share a scale (fp8 and int8: bytes_gemv.h); weights
// are what they are in both. scratch: kColumnsMax k bf16 numbers. Returns whether the result of a gated call is there, not its two products.
bool gemv(const LinearParams& p, bool exact, void* scratch, const GpuShape& gpu, const Queue& queue);

}  // namespace fovea::cuda::quant
