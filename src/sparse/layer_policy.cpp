#include "sparse/layer_policy.h"

#include <string>

namespace fovea {

Result<LayerPolicy> LayerPolicy::make(int32_t num_layers, const std::vector<int32_t>& dense_layers,
                                      const std::vector<int32_t>& reuse_layers) {
  std::vector<LayerRule> rules(num_layers, LayerRule::own);
  const auto mark = [&](const std::vector<int32_t>& layers, LayerRule rule, const char* field) -> Status {
    for (int32_t layer : layers) {
      if (layer < 0 || layer >= num_layers)
        return Status::invalid_argument(std::string(field) + ": layer " + std::to_string(layer) + " is not one of the model's " +
                                        std::to_string(num_layers));
      if (rules[layer] != LayerRule::own && rules[layer] != rule)
        return Status::invalid_argument("dense_layers and reuse_layers: layer " + std::to_string(layer) + " is in both");
      rules[layer] = rule;
    }
    return {};
  };
  FOVEA_TRY(mark(dense_layers, LayerRule::dense, "dense_layers"));
  FOVEA_TRY(mark(reuse_layers, LayerRule::reuse, "reuse_layers"));
  bool chosen = false;
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    if (rules[layer] == LayerRule::own) chosen = true;
    if (rules[layer] == LayerRule::reuse && !chosen)
      return Status::invalid_argument("reuse_layers: layer " + std::to_string(layer) +
                                      " has no earlier layer whose selection it could reuse");
  }
  return LayerPolicy(std::move(rules));
}

}  // namespace fovea
