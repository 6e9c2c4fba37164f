// The kernels of each type: what a file of types defines with FOVEA_QUANT_KERNELS, or FOVEA_GEMV_KERNELS.
#pragma once

#include "kernels/cuda/quant/dot.cuh"
#include "kernels/cuda/quant/gemv.cuh"

namespace fovea::cuda::quant {

template <WeightType kType>
GemvKernel gemv_kernel(int columns);
template <WeightType kType>
GemvKernel dot_kernel(int rows);  // where codes are bytes

#define FOVEA_GEMV_KERNELS(type)                                                         \
  template <>                                                                            \
  GemvKernel gemv_kernel<WeightType::type>(int columns) {                                \
    return columns <= 8 ? &gemv_of<WeightType::type, 1> : &gemv_of<WeightType::type, 2>; \
  }
#define FOVEA_QUANT_KERNELS(type)                                                   \
  FOVEA_GEMV_KERNELS(type)                                                          \
  template <>                                                                       \
  GemvKernel dot_kernel<WeightType::type>(int rows) {                               \
    return rows == 1 ? &dot_of<WeightType::type, 1> : &dot_of<WeightType::type, 2>; \
  }

}  // namespace fovea::cuda::quant
