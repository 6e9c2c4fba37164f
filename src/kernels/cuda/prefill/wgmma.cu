// Prefill attention by TMA and wgmma, over bf16 and f16 K and V. For sm_90a alone: in code for others nothing of it runs.
#include "kernels/cuda/prefill/wgmma_kernel.cuh"

namespace fovea::cuda::prefill {

std::span<const PrefillEntry> wgmma_kernels() {
  using B = __nv_bfloat16;
  using H = __half;
  static const PrefillEntry kEntries[] = {
      wgmma_entry<WgmmaTraits<B, 64, 1>>(DType::bf16),  wgmma_entry<WgmmaTraits<B, 64, 3>>(DType::bf16),
      wgmma_entry<WgmmaTraits<B, 128, 1>>(DType::bf16), wgmma_entry<WgmmaTraits<B, 128, 2>>(DType::bf16),
      wgmma_entry<WgmmaTraits<H, 64, 1>>(DType::f16),   wgmma_entry<WgmmaTraits<H, 64, 3>>(DType::f16),
      wgmma_entry<WgmmaTraits<H, 128, 1>>(DType::f16),  wgmma_entry<WgmmaTraits<H, 128, 2>>(DType::f16),
  };
  return kEntries;
}

}  // namespace fovea::cuda::prefill
