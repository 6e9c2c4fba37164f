// The tensors of DeepSeek-V3.2 and GLM-5 by name.
#pragma once

#include "model/weight_taker.h"

#include <vector>

namespace fovea {

Status take_deepseek_layers(WeightTaker& take, const ModelConfig& config, std::vector<DeepseekLayerWeights>* out);

}  // namespace fovea
