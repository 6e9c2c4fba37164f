// Tensor-core prefill attention over K and V that change on their way to shared memory: fp8 to f16, and the classic
// layout. All dims share two sizes: these paths wait for memory, not for the tensor cores.
#include "kernels/cuda/prefill/mma_kernel.cuh"

namespace fovea::cuda::prefill {

std::span<const PrefillEntry> mma_converted_kernels() {
  constexpr PrefillPath kPath = PrefillPath::mma_converted;
  static const PrefillEntry kEntries[] = {
      mma_entry<MmaTraits<__nv_bfloat16, 128, 1, 4, 2, true>>(kPath, DType::bf16),
      mma_entry<MmaTraits<__nv_bfloat16, 256, 1, 8, 1, true>>(kPath, DType::bf16),
      mma_entry<MmaTraits<__half, 128, 1, 4, 2, true>>(kPath, DType::f16),
      mma_entry<MmaTraits<__half, 256, 1, 8, 1, true>>(kPath, DType::f16),
  };
  return kEntries;
}

}  // namespace fovea::cuda::prefill
