// Lists of an earlier choice as lists for rows as they are now (CarryOverParams), on a GPU.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/ops/select.h"

namespace fovea::cuda {

void carry_over(const CarryOverParams& p, cudaStream_t stream);

}  // namespace fovea::cuda
