// What configs of DeepSeek's models and GLM-5 say beyond a dense model's.
#pragma once

#include "model/config.h"
#include "model/config_fields.h"

namespace fovea {

class GgufArchKeys;
class GgufSource;

// Fills config->deepseek, and num_kv_heads and head_dim with the cache's shape. The sizes, switches and rope of `config`
// are read already. Errors: corrupt and unsupported, as parse_model_config.
Status read_deepseek(const ConfigFields& fields, ModelConfig* config);

// The same of the keys of a GGUF file of architecture deepseek2, where rope is read afterwards.
Status read_gguf_deepseek(const GgufArchKeys& keys, const GgufSource& source, ModelConfig* config);

// What scores are multiplied by: (nope_dim + rope_dim)^-0.5, times mscale^2 where the rope has mscale_all_dim.
float latent_softmax_scale(const RopeConfig& rope, const DeepseekConfig& deepseek);

// What the kernels are built for (fovea/kernels/mla.h, fovea/kernels/indexer.h), and what weights.h is to list.
inline constexpr int64_t kLatentMax = 512;
inline constexpr int64_t kRopeDimMax = 128;
inline constexpr int64_t kPartDimMax = 1024;  // of a head: qk_nope_head_dim, v_head_dim
inline constexpr int64_t kExpertsMax = 4096;
inline constexpr int64_t kExpertsOfAllLayersMax = 1 << 17;  // eight times any published model's
inline constexpr int64_t kExpertGroupsMax = 64;
inline constexpr int64_t kSharedExpertsMax = 64;

}  // namespace fovea
