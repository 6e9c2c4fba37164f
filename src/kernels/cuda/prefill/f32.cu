// Float32 prefill attention.
#include "kernels/cuda/prefill/f32_kernel.cuh"

namespace fovea::cuda::prefill {
namespace {

template <int kHeadDim>
PrefillEntry f32_entry() {
  using Shared = F32Shared<kHeadDim>;
  return {PrefillPath::f32,
          DType::f32,
          kHeadDim,
          Shared::kLanes,
          {reinterpret_cast<const void*>(&prefill_f32<Shared>), Shared::kThreads, static_cast<int32_t>(sizeof(Shared))}};
}

}  // namespace

std::span<const PrefillEntry> f32_kernels() {
  static const PrefillEntry kEntries[] = {f32_entry<64>(), f32_entry<128>(), f32_entry<256>()};
  return kEntries;
}

}  // namespace fovea::cuda::prefill
