// Embedding: rows of the table as float32.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/ops/elementwise.h"

namespace fovea::cuda {

void embed(const EmbedParams& p, const Queue& queue);

}  // namespace fovea::cuda
