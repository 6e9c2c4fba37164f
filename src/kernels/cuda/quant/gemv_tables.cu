#include "kernels/cuda/quant/gemv.cuh"

namespace fovea::cuda::quant {

FOVEA_QUANT_GEMV(iq4_nl)
FOVEA_QUANT_GEMV(iq4_xs)
FOVEA_QUANT_GEMV(mxfp4)

}  // namespace fovea::cuda::quant
