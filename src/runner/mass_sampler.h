// The true attention mass of blocks, for the rows that a trace asks about: what a selection tried to guess.
#pragma once

#include "model/forward.h"
#include "sparse/method.h"

#include <vector>

namespace fovea {

// On a host device alone: it reads the step's arrays, and only the CPU's operations have attention_mass.
class MassSampler {
 public:
  MassSampler(const ModelShape& shape, Ops& ops, Stream& stream) : shape_(shape), ops_(ops), stream_(stream) {}

  // [kv_heads, blocks] of one row of a group with `len` visible keys: the mean over the head's query heads, so that each KV
  // head's masses sum to 1. Valid until the next call.
  const float* sample(const RowGroup& group, int32_t row, int32_t len, const LayerScores& scores);

 private:
  const ModelShape shape_;
  Ops& ops_;
  Stream& stream_;
  std::vector<float> mass_;  // grows with the longest row that was sampled
};

}  // namespace fovea
