#include "model/cache_key.h"

namespace fovea {

KeyContext key_context(const ModelConfig& config) {
  const RopeConfig& r = config.rope;
  KeyContext key;
  key.rope = {.kind = std::string(rope_kind_name(r.kind)),
              .dim = config.rope_dim(),
              .interleaved = config.deepseek && config.deepseek->rope_interleaved,
              .theta = r.theta,
              .factor = r.factor,
              .low_freq_factor = r.low_freq_factor,
              .high_freq_factor = r.high_freq_factor,
              .original_max_position = r.original_max_position,
              .beta_fast = r.beta_fast,
              .beta_slow = r.beta_slow,
              .attention_factor = r.attention_factor,
              .mscale_all_dim = r.mscale_all_dim,
              .truncate = r.truncate};
  key.head_dim = config.head_dim;
  key.kv_heads = config.num_kv_heads;
  key.window = config.sliding_window;
  if (const auto& d = config.deepseek) {
    key.latent = LatentKey{.rank = d->kv_lora_rank,
                           .index_heads = d->index_heads,
                           .index_dim = d->index_dim,
                           .index_topk = d->index_topk,
                           .index_interleaved = d->index_rope_interleaved};
  }
  return key;
}

}  // namespace fovea
