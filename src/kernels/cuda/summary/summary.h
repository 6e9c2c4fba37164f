// Summaries of blocks on a GPU: made from the cache, and scored (fovea/kernels/select.h).
#pragma once

#include <fovea/kernels/limits.h>
#include <fovea/kernels/select.h>
#include <fovea/status.h>

#include <cuda_runtime_api.h>

#include <cstdint>

#include "device/device.h"
#include "kernels/cuda/hash_select/config.h"

namespace fovea::cuda {

// Bit for bit as ref does. K of any dtype that kv_write writes.
void block_summaries(const BlockSummariesParams& p, cudaStream_t stream);

// Choices by summaries and by given scores: scores become ranks of 32 bits, of which hash_select's top-k keeps the lowest. Two
// launches for as many rows as scratch holds.
class SummarySelect {
 public:
  // Errors: resource_exhausted; unsupported: a device that cannot run the kernels.
  Status prepare(const OpsLimits& limits, Device& device);

  // Calls of one object are on one stream: they share its scratch.
  void run(const SummarySelectParams& p, cudaStream_t stream);
  void run(const BlockTopkParams& p, cudaStream_t stream);

 private:
  uint32_t* ranks() const { return ranks_.as<uint32_t>(); }
  void check(const BlockChoice& p) const;
  void keep_best(const BlockChoice& p, int32_t first, int32_t rows, cudaStream_t stream);

  OpsLimits limits_;
  hash::Scratch scratch_;
  Buffer ranks_;  // uint32 [scratch rows, kv_heads, scratch blocks]
};

}  // namespace fovea::cuda
