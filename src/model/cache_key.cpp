#include "model/cache_key.h"

#include "model/digest.h"

namespace fovea {

namespace {

// The divisors are too many for fields of their own.
std::string kind_text(const RopeConfig& r) {
  std::string kind(rope_kind_name(r.kind));
  const std::string_view bytes(reinterpret_cast<const char*>(r.divisors.data()), r.divisors.size() * sizeof(float));
  return r.divisors.empty() ? kind : kind + " " + digest_hex(bytes_digest(bytes));
}

}  // namespace

KeyContext key_context(const ModelConfig& config) {
  const RopeConfig& r = config.rope;
  KeyContext key;
  key.rope = {.kind = kind_text(r),
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
