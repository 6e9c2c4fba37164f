// The DSA indexer on a GPU (fovea/kernels/indexer.h).
#pragma once

#include <fovea/kernels/indexer.h>
#include <fovea/kernels/limits.h>
#include <fovea/kernels/linear.h>
#include <fovea/status.h>

#include <cuda_runtime_api.h>

#include <cstdint>

#include "device/device.h"
#include "kernels/cuda/dsa/config.h"
#include "kernels/cuda/prefill/tensor_map.h"

namespace fovea::cuda {

// Bit for bit as ref does.
void index_write(const IndexWriteParams& p, cudaStream_t stream);
void index_transform(const IndexTransformParams& p, cudaStream_t stream);

// Two launches for as many rows as scratch has lists: one streams scores into lists of candidates, one makes the rows' lists of
// them. Bit for bit as ref does, but for scores of bf16 and fp8 keys on Hopper's tensor cores: their sums are in
// another order, and a key with an infinite element ranks as a NaN.
// Numerics::f32 keeps away from those.
class IndexTopk {
 public:
  // Errors: resource_exhausted; unsupported: a model's indexer that is too large, a device that cannot run the kernels.
  Status prepare(const OpsLimits& limits, Device& device, Numerics numerics);

  // Calls of one object are on one stream: they share its scratch.
  void run(const IndexTopkParams& p, cudaStream_t stream);

 private:
  OpsLimits limits_;
  dsa::Scratch scratch_;
  dsa::DsaDevice device_;
  prefill::EncodeTensorMap encode_ = nullptr;  // null: no tensor cores
  Buffer lists_, counts_;
};

}  // namespace fovea::cuda
