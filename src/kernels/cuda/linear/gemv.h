// Products of a few rows: one pass over the weights at memory speed, a whole group (q, k and v) in one
// launch.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/cuda/linear/config.h"

namespace fovea::cuda {

// At most kGemvRowsMax rows, on vectors (LinearShape). Activations stay float32, weights are widened exactly. Returns whether the result
// of a gated call is there, not its two products: of one row, where both weights have one type.
bool gemv(const LinearParams& p, const Queue& queue);

}  // namespace fovea::cuda
