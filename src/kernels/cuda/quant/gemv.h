// Products of few rows with quantised weights, read once as they lie.
#pragma once

#include <fovea/kernels/elementwise.h>
#include <fovea/kernels/linear.h>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/quant/config.h"

namespace fovea::cuda::quant {

// p: weights of any types but plain ones, k a multiple of 32, data on multiples of 16; at most rows_max(exact) rows. exact: float32
// activations, else rounded to bf16, of one or two rows to 15 bits of the largest that share a scale (fp8 and int8: bytes_gemv.h); weights
// are what they are in both. scratch: kColumnsMax k bf16 numbers. Returns whether the result of a gated call is there, not its two products.
// norm: what x is the result of and is not there yet, where takes_norm() says so; else null.
bool gemv(const LinearParams& p, const RmsNormParams* norm, bool exact, void* scratch, const GpuShape& gpu, const Queue& queue);

// Whether the products compute the norm of x themselves: one or two rows that may be rounded, and x fits beside the weights.
bool takes_norm(const LinearParams& p, bool exact, const GpuShape& gpu);

}  // namespace fovea::cuda::quant
