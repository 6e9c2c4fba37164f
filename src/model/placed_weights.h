// PlacedWeights: a model's weights where operations can read them: views of the host's on the CPU, a copy on a GPU.
#pragma once

#include "device/device.h"
#include "model/checkpoint.h"
#include "model/config.h"

#include <memory>
#include <vector>

namespace fovea {

struct PlacedLayer {
  const float* input_norm = nullptr;           // [hidden]
  WeightMatrix q, k, v, o;
  const float* q_bias = nullptr;               // null where the model has none; so the others
  const float* k_bias = nullptr;
  const float* v_bias = nullptr;
  const float* o_bias = nullptr;
  const float* q_norm = nullptr;               // [head_dim]
  const float* k_norm = nullptr;
  const float* post_attention_norm = nullptr;  // [hidden]
  WeightMatrix gate, up, down;
  const float* gate_bias = nullptr;
  const float* up_bias = nullptr;
  const float* down_bias = nullptr;
};

struct PlacedWeights {
  WeightMatrix embed;
  std::vector<PlacedLayer> layers;  // of a dense model; others read the host's
  const float* final_norm = nullptr;
  WeightMatrix lm_head;
  const float* inv_freq = nullptr;  // [rope_dim / 2] radians a token (model/rope.h)

  std::vector<float> host_inv_freq;
  Buffer memory;  // of the copy
};

// Where the device is the host the result points into `weights`, which outlives it; else everything is copied and `weights`
// may go. Errors: resource_exhausted.
Result<std::unique_ptr<PlacedWeights>> place_weights(const ModelWeights& weights, const ModelConfig& config, Device& device, Stream& stream);

}  // namespace fovea
