#include "kernels/cuda/quant/kernels.cuh"

namespace fovea::cuda::quant {

FOVEA_QUANT_KERNELS(q4_k)
FOVEA_QUANT_KERNELS(q5_k)

}  // namespace fovea::cuda::quant
