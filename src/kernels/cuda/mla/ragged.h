// Attention over contiguous keys and values on a GPU, and the merge of two partial results (fovea/kernels/attention.h).
#pragma once

#include <fovea/kernels/attention.h>
#include <fovea/kernels/limits.h>
#include <fovea/kernels/linear.h>
#include <fovea/status.h>

#include <cuda_runtime_api.h>

namespace fovea::cuda {

class RaggedAttention {
 public:
  // Errors: unsupported: a model's sizes, or a device that cannot run the kernel.
  Status prepare(const OpsLimits& limits, Numerics numerics);

  // With Numerics::bf16 on tensor cores, queries, keys, weights and values rounded, where sizes are multiples of 8 up to 256; else in
  // float32. A row's bits depend on its keys alone.
  void run(const RaggedAttentionParams& p, cudaStream_t stream);

 private:
  Numerics numerics_ = Numerics::f32;
  size_t shared_bytes_ = 0;  // that the kernel was allowed
};

void lse_merge(const LseMergeParams& p, cudaStream_t stream);

}  // namespace fovea::cuda
