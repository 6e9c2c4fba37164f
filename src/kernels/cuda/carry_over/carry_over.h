// Lists of an earlier choice as lists for rows as they are now (CarryOverParams), on a GPU.
#pragma once

#include <fovea/kernels/select.h>

#include <cuda_runtime_api.h>

namespace fovea::cuda {

void carry_over(const CarryOverParams& p, cudaStream_t stream);

}  // namespace fovea::cuda
