// The true attention mass of blocks, for the rows that a trace asks about: what a selection tried to guess.
#pragma once

#include "device/device.h"
#include "model/forward.h"
#include "sparse/method.h"

#include <vector>

namespace fovea {

// On a device that is not the host every sample waits for it.
class MassSampler {
 public:
  MassSampler(const ModelShape& shape, Device& device, Ops& ops, Stream& stream)
      : shape_(shape), device_(device), ops_(ops), stream_(stream) {}

  // [kv_heads, blocks] of one row of a group with `len` visible keys: the mean over the head's query heads, so that each KV
  // head's masses sum to 1. Valid until the next call. Errors: the device's.
  Result<const float*> sample(const RowGroup& group, int32_t row, int32_t len, const LayerScores& scores);

 private:
  const ModelShape shape_;
  Device& device_;
  Ops& ops_;
  Stream& stream_;
  Buffer device_mass_;  // grows with the longest row that was sampled
  std::vector<float> mass_;
};

}  // namespace fovea
