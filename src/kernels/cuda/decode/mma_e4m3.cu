#include "kernels/cuda/decode/cluster_kernel.cuh"

namespace fovea::cuda::decode {

std::vector<Entry> e4m3_entries() { return mma_entries<Fp8Kv<__NV_E4M3>>(DType::fp8_e4m3); }

}  // namespace fovea::cuda::decode
