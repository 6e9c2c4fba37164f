// PlacedWeights: a model's weights where operations can read them: views of the host's on the CPU, a copy on a GPU.
#pragma once

#include "device/device.h"
#include "model/weights.h"

#include <memory>
#include <vector>

namespace fovea {

struct PlacedWeights : ModelWeights {
  const float* inv_freq = nullptr;  // [rope_dim / 2] radians a token (model/rope.h)

  std::vector<float> host_inv_freq;
  Buffer memory;  // what the views of a copy point into
};

// On the host: views of `weights`, whose memory the result keeps.
std::unique_ptr<PlacedWeights> place_weights(const ModelWeights& weights, const ModelConfig& config);
// In the memory of a device that is not the host: everything is copied, and `weights` may go. Quantised matrices of models with latent
// attention become bf16. Errors: resource_exhausted.
Result<std::unique_ptr<PlacedWeights>> copy_weights(const ModelWeights& weights, const ModelConfig& config, Device& device,
                                                    Stream& stream);

}  // namespace fovea
