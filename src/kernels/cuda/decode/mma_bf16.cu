#include "kernels/cuda/decode/cluster_kernel.cuh"

namespace fovea::cuda::decode {

std::vector<Entry> bf16_entries() { return mma_entries<Bf16Kv>(DType::bf16); }

}  // namespace fovea::cuda::decode
