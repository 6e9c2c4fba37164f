#include "kernels/cuda/quant/kernels.cuh"

namespace fovea::cuda::quant {

FOVEA_QUANT_KERNELS(q2_k)
FOVEA_QUANT_KERNELS(q3_k)

}  // namespace fovea::cuda::quant
