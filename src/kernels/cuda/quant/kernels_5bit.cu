#include "kernels/cuda/quant/kernels.cuh"

namespace fovea::cuda::quant {

FOVEA_QUANT_KERNELS(q5_0)
FOVEA_QUANT_KERNELS(q5_1)

}  // namespace fovea::cuda::quant
