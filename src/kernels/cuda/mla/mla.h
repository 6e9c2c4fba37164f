// Latent attention on a GPU (fovea/kernels/mla.h).
#pragma once

#include <fovea/kernels/limits.h>
#include <fovea/kernels/linear.h>
#include <fovea/kernels/mla.h>
#include <fovea/status.h>

#include <cuda_runtime_api.h>

#include "device/device.h"

namespace fovea::cuda {

void mla_write(const MlaWriteParams& p, cudaStream_t stream);
void mla_gather(const MlaGatherParams& p, cudaStream_t stream);

// Products of every head with its part of kv_b: with Numerics::bf16 and weights of bf16 on tensor cores, q or x rounded; else in
// float32, each a chain in ascending order of the inner dimension. A row's bits do not depend on the other rows.
void mla_absorb(const MlaAbsorbParams& p, Numerics numerics, cudaStream_t stream);
void mla_unabsorb(const MlaUnabsorbParams& p, Numerics numerics, cudaStream_t stream);

// Absorbed attention: a row's keys are cut into splits by their number alone, which thread blocks read side by side; a second
// launch puts the splits of a row together. Two launches for as many rows as scratch holds.
class MlaAttention {
 public:
  // Errors: resource_exhausted; unsupported: a model's sizes, or a device that cannot run the kernels.
  Status prepare(const OpsLimits& limits, Device& device, Numerics numerics);

  // With Numerics::bf16 Hopper's tensor cores take models of DeepSeek's sizes: entries of 16 bits, queries and weights rounded to
  // their type; else float32. Calls of one object are on one stream: they share its scratch.
  void run(const MlaAttendParams& p, cudaStream_t stream);

 private:
  bool takes_wgmma(const MlaAttendParams& p) const;

  OpsLimits limits_;
  bool for_wgmma_ = false;
  Buffer sums_;     // float: unnormalised results of splits
  Buffer softmax_;  // float2, one for each of them: the greatest score and the sum of weights
};

}  // namespace fovea::cuda
