// The fields of config.json that DeepSeek-V3.2 and GLM-5 have beyond a dense model's.
#pragma once

#include "model/config.h"
#include "model/config_fields.h"

namespace fovea {

// Fills config->deepseek, and num_kv_heads and head_dim with the cache's shape. The sizes, switches and rope of `config`
// are read already. Errors: corrupt and unsupported, as parse_model_config.
Status read_deepseek(const ConfigFields& fields, ModelConfig* config);

}  // namespace fovea
