#include "kernels/cuda/quant/gemv.cuh"

namespace fovea::cuda::quant {

FOVEA_QUANT_GEMV(q4_k)
FOVEA_QUANT_GEMV(q5_k)
FOVEA_QUANT_GEMV(q6_k)

}  // namespace fovea::cuda::quant
