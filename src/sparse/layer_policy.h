// What each layer reads: everything, its own Selection, or the Selection the method made last.
#pragma once

#include <fovea/options.h>
#include <fovea/status.h>
#include <fovea/types.h>

#include <cstdint>
#include <vector>

namespace fovea {

enum class LayerRule : uint8_t {
  dense,  // read everything
  own,    // ask the method
  reuse,  // read what the nearest earlier `own` layer chose
};

class LayerPolicy {
 public:
  // One rule a layer, `own` unless listed; `reuse` before any `own` layer is refused.
  static Result<LayerPolicy> make(int32_t num_layers, const std::vector<int32_t>& dense_layers,
                                  const std::vector<int32_t>& reuse_layers = {});
  LayerRule rule(LayerIdx layer) const { return rules_[layer.value]; }
  int32_t num_layers() const { return static_cast<int32_t>(rules_.size()); }

 private:
  explicit LayerPolicy(std::vector<LayerRule> rules) : rules_(std::move(rules)) {}
  std::vector<LayerRule> rules_;
};

}  // namespace fovea
