#include "kernels/cuda/decode/cluster_kernel.cuh"

namespace fovea::cuda::decode {

std::vector<Entry> e5m2_entries() { return mma_entries<Fp8Kv<__NV_E5M2>>(DType::fp8_e5m2); }

}  // namespace fovea::cuda::decode
