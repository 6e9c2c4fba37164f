// Latent attention on a GPU (fovea/kernels/mla.h).
#pragma once

#include <fovea/kernels/limits.h>
#include <fovea/kernels/mla.h>
#include <fovea/status.h>

#include <cuda_runtime_api.h>

#include "device/device.h"
#include "kernels/cuda/mla/config.h"

namespace fovea::cuda {

void mla_write(const MlaWriteParams& p, cudaStream_t stream);
void mla_gather(const MlaGatherParams& p, cudaStream_t stream);

// Products of every head with its part of kv_b in float32, each a chain in ascending order of the inner dimension: a row's bits do
// not depend on the other rows.
void mla_absorb(const MlaAbsorbParams& p, cudaStream_t stream);
void mla_unabsorb(const MlaUnabsorbParams& p, cudaStream_t stream);

// Absorbed attention: a row's keys are cut into splits by their number alone, which thread blocks read side by side; a second
// launch puts the splits of a row together. Two launches for as many rows as scratch holds.
class MlaAttention {
 public:
  // Errors: resource_exhausted; unsupported: a model's sizes, or a device that cannot run the kernels.
  Status prepare(const OpsLimits& limits, Device& device);

  // Calls of one object are on one stream: they share its scratch.
  void run(const MlaAttendParams& p, cudaStream_t stream);

 private:
  OpsLimits limits_;
  mla::SplitRule rule_;
  Buffer sums_;     // float [kScratchFloats]: unnormalised results of splits
  Buffer softmax_;  // float2, one for each of them: the greatest score and the sum of weights
};

}  // namespace fovea::cuda
