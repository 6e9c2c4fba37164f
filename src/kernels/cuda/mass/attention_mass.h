// The softmax mass on each block on a GPU (AttentionMassParams): two launches for as many rows as scratch holds. The first reads
// every key and leaves each block's part of each query head's softmax, the second puts the parts together.
#pragma once

#include <fovea/kernels/limits.h>
#include <fovea/kernels/select.h>
#include <fovea/status.h>

#include <cuda_runtime_api.h>

#include <cstdint>

#include "device/device.h"

namespace fovea::cuda {

class AttentionMass {
 public:
  // Errors: resource_exhausted.
  Status prepare(const OpsLimits& limits, Device& device);

  // head_dim a multiple of 16 up to 256. Calls of one object are on one stream: they share its scratch.
  void run(const AttentionMassParams& p, cudaStream_t stream);

 private:
  OpsLimits limits_;
  int64_t blocks_ = 0;  // of the longest row
  int32_t rows_ = 0;    // of a pass
  Buffer parts_;        // float2 [rows, num_heads, blocks]: greatest score, and the sum of exp(score - greatest)
};

}  // namespace fovea::cuda
