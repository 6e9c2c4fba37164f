#include "kernels/cuda/quant/gemv.cuh"

namespace fovea::cuda::quant {

FOVEA_QUANT_GEMV(q4_0)
FOVEA_QUANT_GEMV(q4_1)
FOVEA_QUANT_GEMV(q5_0)
FOVEA_QUANT_GEMV(q5_1)

}  // namespace fovea::cuda::quant
