#include "kernels/cuda/quant/gemv.cuh"

namespace fovea::cuda::quant {

FOVEA_QUANT_GEMV(q2_k)
FOVEA_QUANT_GEMV(q3_k)

}  // namespace fovea::cuda::quant
