// Choosing tokens from logits (SampleParams): whatever the vocabulary's size, in two launches.
#pragma once

#include <fovea/kernels/limits.h>
#include <fovea/kernels/sample.h>
#include <fovea/status.h>

#include <cstdint>

#include "device/device.h"
#include "kernels/cuda/launch.h"

namespace fovea::cuda {

class Sample {
 public:
  // Errors: resource_exhausted, unsupported (vocab).
  Status prepare(const OpsLimits& limits, Device& device);
  void run(const SampleParams& p, const Queue& queue);

 private:
  int32_t blocks_ = 0;  // that run at once, where blocks can share a row; else 0
  int32_t rows_max_ = 0;
  int32_t words_ = 0;  // of a row's bitmap
  Buffer best_;        // BestOfRow [max_sample_rows]
  Buffer penalised_;   // [max_sample_rows, words] a bit for each token that occurred
};

}  // namespace fovea::cuda
