#include "kernels/cuda/quant/kernels.cuh"

namespace fovea::cuda::quant {

FOVEA_QUANT_KERNELS(q8_0)
FOVEA_QUANT_KERNELS(int8)
FOVEA_GEMV_KERNELS(fp8_e4m3)

}  // namespace fovea::cuda::quant
