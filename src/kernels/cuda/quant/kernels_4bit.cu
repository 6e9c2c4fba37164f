#include "kernels/cuda/quant/kernels.cuh"

namespace fovea::cuda::quant {

FOVEA_QUANT_KERNELS(q4_0)
FOVEA_QUANT_KERNELS(q4_1)
FOVEA_QUANT_KERNELS(int4)

}  // namespace fovea::cuda::quant
