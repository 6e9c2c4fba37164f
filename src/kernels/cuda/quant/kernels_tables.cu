#include "kernels/cuda/quant/kernels.cuh"

namespace fovea::cuda::quant {

FOVEA_QUANT_KERNELS(iq4_nl)
FOVEA_QUANT_KERNELS(iq4_xs)
FOVEA_QUANT_KERNELS(mxfp4)

}  // namespace fovea::cuda::quant
