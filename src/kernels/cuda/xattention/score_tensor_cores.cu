// The instances: bf16, f16, and fp8 as f16; for any device, and with wgmma for sm_90a (in code for others nothing of it runs).
#include "kernels/cuda/xattention/score_kernel.cuh"

namespace fovea::cuda::xattention {

std::span<const ScoreEntry> tensor_core_kernels() {
  using B = __nv_bfloat16;
  using H = __half;
  static const ScoreEntry kEntries[] = {
      score_entry<MmaProduct<B>, false>(DType::bf16),  score_entry<MmaProduct<H>, false>(DType::f16),
      score_entry<MmaProduct<H>, true>(DType::f16),    score_entry<WgmmaProduct<B>, false>(DType::bf16),
      score_entry<WgmmaProduct<H>, false>(DType::f16), score_entry<WgmmaProduct<H>, true>(DType::f16),
  };
  return kEntries;
}

}  // namespace fovea::cuda::xattention
