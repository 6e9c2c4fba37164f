#include "kernels/cuda/quant/gemv.cuh"

namespace fovea::cuda::quant {

FOVEA_QUANT_GEMV(q8_0)
FOVEA_QUANT_GEMV(int8)
FOVEA_QUANT_GEMV(fp8_e4m3)
FOVEA_QUANT_GEMV(int4)

}  // namespace fovea::cuda::quant
