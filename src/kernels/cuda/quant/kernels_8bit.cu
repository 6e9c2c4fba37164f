#include "kernels/cuda/quant/kernels.cuh"

namespace fovea::cuda::quant {

FOVEA_QUANT_KERNELS(q8_0)
FOVEA_QUANT_KERNELS(int8)
template <>
GemvKernel gemv_kernel<WeightType::fp8_e4m3>(int columns) {
  return columns <= 8 ? &gemv_of<WeightType::fp8_e4m3, 1> : &gemv_of<WeightType::fp8_e4m3, 2>;
}
template <>
GemvKernel dot_kernel<WeightType::fp8_e4m3>(int) {
  return nullptr;
}

}  // namespace fovea::cuda::quant
