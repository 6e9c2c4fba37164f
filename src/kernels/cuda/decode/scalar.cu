#include "kernels/cuda/decode/entries.h"
#include "kernels/cuda/decode/scalar_kernel.cuh"

namespace fovea::cuda::decode {
namespace {

template <typename Kv, KvLayout kLayout>
Entry entry(DType dtype) {
  Entry e;
  e.dtype = dtype;
  e.shape.path = kLayout == KvLayout::classic ? Path::classic : Path::scalar;
  e.function = reinterpret_cast<const void*>(&scalar_kernel<Kv, kLayout>);
  e.shared_bytes = sizeof(typename ScalarKernel<Kv, kLayout>::Shared);
  return e;
}

}  // namespace

std::vector<Entry> scalar_entries() {
  return {entry<ScalarF32, KvLayout::hnd>(DType::f32),
          entry<ScalarF32, KvLayout::classic>(DType::f32),
          entry<ScalarBf16, KvLayout::classic>(DType::bf16),
          entry<ScalarF16, KvLayout::classic>(DType::f16),
          entry<ScalarFp8<__NV_E4M3>, KvLayout::classic>(DType::fp8_e4m3),
          entry<ScalarFp8<__NV_E5M2>, KvLayout::classic>(DType::fp8_e5m2)};
}

}  // namespace fovea::cuda::decode
