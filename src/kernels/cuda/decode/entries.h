// The compiled decode kernels: each family fills its table in a source file of its own.
#pragma once

#include <fovea/kernels/attention.h>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <vector>

#include "kernels/cuda/decode/config.h"

namespace fovea::cuda::decode {

struct Entry {
  DType dtype = DType::bf16;
  Shape shape;                     // path, dim_class and tile_heads tell the kernels apart
  const void* function = nullptr;  // void(Args)
  size_t shared_bytes = 0;
};

std::vector<Entry> bf16_entries();
std::vector<Entry> f16_entries();
std::vector<Entry> e4m3_entries();
std::vector<Entry> e5m2_entries();
std::vector<Entry> scalar_entries();

// No partition holds a key yet.
void clear_partitions(const PartitionedAttentionParams& p, cudaStream_t stream);

}  // namespace fovea::cuda::decode
