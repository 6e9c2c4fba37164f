// Products of a few rows: one pass over the weights at memory speed, a whole group (q, k and v) in one
// launch.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/ops/linear.h"

namespace fovea::cuda {

inline constexpr int kGemvRowsMax = 8;

// Whether every weight row begins and ends on 16 bytes, and so does x.
bool on_vectors(const LinearParams& p);

// At most kGemvRowsMax rows, on vectors. Activations stay float32, weights are widened exactly.
void gemv(const LinearParams& p, const Queue& queue);

}  // namespace fovea::cuda
