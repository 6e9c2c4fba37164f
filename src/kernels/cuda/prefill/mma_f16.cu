// Tensor-core prefill attention over f16 K and V.
#include "kernels/cuda/prefill/mma_kernel.cuh"

namespace fovea::cuda::prefill {

std::span<const PrefillEntry> mma_f16_kernels() {
  using T = __half;
  static const PrefillEntry kEntries[] = {
      mma_entry<MmaTraits<T, 64, 1, 4, 3, false>>(PrefillPath::mma, DType::f16),
      mma_entry<MmaTraits<T, 64, 1, 8, 2, false>>(PrefillPath::mma, DType::f16),
      mma_entry<MmaTraits<T, 96, 1, 4, 2, false>>(PrefillPath::mma, DType::f16),
      mma_entry<MmaTraits<T, 96, 1, 8, 1, false>>(PrefillPath::mma, DType::f16),
      mma_entry<MmaTraits<T, 128, 1, 4, 2, false>>(PrefillPath::mma, DType::f16),
      mma_entry<MmaTraits<T, 128, 1, 8, 1, false>>(PrefillPath::mma, DType::f16),
      mma_entry<MmaTraits<T, 192, 1, 8, 1, false>>(PrefillPath::mma, DType::f16),
      mma_entry<MmaTraits<T, 256, 1, 8, 1, false>>(PrefillPath::mma, DType::f16),
  };
  return kEntries;
}

}  // namespace fovea::cuda::prefill
