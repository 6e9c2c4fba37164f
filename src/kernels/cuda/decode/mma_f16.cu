#include "kernels/cuda/decode/cluster_kernel.cuh"

namespace fovea::cuda::decode {

std::vector<Entry> f16_entries() { return mma_entries<F16Kv>(DType::f16); }

}  // namespace fovea::cuda::decode
