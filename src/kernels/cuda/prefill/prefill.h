// Tiled causal prefill attention over paged KV memory, on an NVIDIA GPU. docs/gpu.md says how it works.
//
// A row's result does not depend, bit for bit, on the rows that share its tile, on the batch or on how a prompt was cut
// into chunks: tiles of keys lie at fixed places of the row's own list of keys, and a tile that a row does not see leaves
// its state exactly as it was.
#pragma once

#include <fovea/kernels/attention.h>
#include <fovea/kernels/limits.h>
#include <fovea/kernels/linear.h>
#include <fovea/status.h>

#include <cuda_runtime_api.h>

#include "device/device.h"
#include "kernels/cuda/prefill/config.h"
#include "kernels/cuda/prefill/tensor_map.h"

namespace fovea::cuda {

class Prefill {
 public:
  // Errors: invalid_argument naming the limit and its value; resource_exhausted; unsupported where a kernel does not fit
  // the device.
  Status prepare(const OpsLimits& limits, Device& device, Numerics numerics);

  // From here on chooses kernels as for another device, of which this one can run them all: how a test reaches the paths
  // that its device does not choose.
  void choose_as(const PrefillDevice& device) { device_ = device; }
  const PrefillDevice& device() const { return device_; }

  // Enqueues two launches. At most limits.max_rows rows.
  void run(const AttentionParams& p, cudaStream_t stream);

 private:
  Numerics numerics_ = Numerics::f32;
  int32_t max_rows_ = 0;
  PrefillDevice device_;
  prefill::EncodeTensorMap encode_ = nullptr;  // null: no wgmma path
  Buffer plan_;                                // tile count, then max_rows_ RowTiles; used by one run() at a time, in stream order
};

}  // namespace fovea::cuda
