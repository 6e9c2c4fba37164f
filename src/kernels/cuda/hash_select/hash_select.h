// Block selection by hash codes on a GPU (HashSelectParams): two launches, nothing read back. The first
// encodes the queries and scans the codes of all blocks, the second keeps the best of each list.
//
// Distances are held in scratch for as many rows as prepare() allows; a call of more rows runs in several
// passes of two launches each.
#pragma once

#include <fovea/kernels/limits.h>
#include <fovea/kernels/select.h>
#include <fovea/status.h>

#include <cuda_runtime_api.h>

#include "device/device.h"
#include "kernels/cuda/hash_select/config.h"

namespace fovea::cuda {

class HashSelect {
 public:
  // Errors: resource_exhausted; unsupported: a device that cannot run the kernels.
  Status prepare(const OpsLimits& limits, Device& device);

  // head_dim in [33, 256] (n of 64, 128 or 256). Calls of one object are on one stream: they share its
  // scratch.
  void run(const HashSelectParams& p, cudaStream_t stream);

 private:
  void run_rows(const HashSelectParams& p, int32_t first, int32_t rows, cudaStream_t stream);

  OpsLimits limits_;
  hash::Scratch scratch_;
  int32_t topk_shared_bytes_ = 0;
  Buffer distances_;  // [scratch rows, kv_heads, scratch blocks], u16 or u32
};

}  // namespace fovea::cuda
