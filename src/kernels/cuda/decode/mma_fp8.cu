#include "kernels/cuda/decode/mma_kernel.cuh"

namespace fovea::cuda::decode {

std::vector<Entry> fp8_entries() { return mma_entries<Fp8Kv>(DType::fp8_e4m3); }

}  // namespace fovea::cuda::decode
