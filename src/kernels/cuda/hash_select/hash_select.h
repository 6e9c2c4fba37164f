// Block selection by hash codes on a GPU (HashSelectParams): one launch, nothing read back.
//
// Ranks of blocks are held in scratch for as many rows as prepare() allows; a call of more rows runs in several launches.
#pragma once

#include <fovea/kernels/limits.h>
#include <fovea/kernels/select.h>
#include <fovea/status.h>

#include "device/device.h"
#include "kernels/cuda/hash_select/config.h"
#include "kernels/cuda/launch.h"

namespace fovea::cuda {

class HashSelect {
 public:
  static constexpr int32_t kLooks = 1024;  // each takes half a microsecond or more

  // looks: how often a chooser that is apart (SelectShape) looks for ranks before it leaves the choice to those that score. Errors:
  // resource_exhausted; unsupported: a device that cannot run the kernels.
  Status prepare(const OpsLimits& limits, Device& device, int32_t looks = kLooks);

  // head_dim in [33, 256] (n of 64, 128 or 256). Calls of one object are on one stream: they share its
  // scratch.
  void run(const HashSelectParams& p, const Queue& queue);

 private:
  OpsLimits limits_;
  hash::SelectDevice device_;
  hash::Scratch scratch_;
  int32_t looks_ = 0;
  Buffer ranks_;    // uint32 [scratch rows, kv_heads, scratch blocks]
  Buffer coming_;   // the same of lists whose choosers are apart; every byte 0xff between launches
  Buffer arrived_;  // uint32 [scratch rows, kv_heads], 0 between launches
};

}  // namespace fovea::cuda
