// Embedding: rows of the table as float32.
#pragma once

#include <fovea/kernels/elementwise.h>

#include "kernels/cuda/launch.h"

namespace fovea::cuda {

void embed(const EmbedParams& p, const Queue& queue);

}  // namespace fovea::cuda
