#include "model/gguf_arch_keys.h"

#include <algorithm>
#include <functional>
#include <iterator>

namespace fovea {
namespace {

// Keys that are read, or that say nothing about what is computed.
constexpr std::string_view kKnownKeys[] = {"vocab_size",
                                           "context_length",
                                           "embedding_length",
                                           "block_count",
                                           "feed_forward_length",
                                           "tensor_data_layout",
                                           "expert_count",
                                           "expert_used_count",
                                           "attention.head_count",
                                           "attention.head_count_kv",
                                           "attention.key_length",
                                           "attention.value_length",
                                           "attention.layer_norm_rms_epsilon",
                                           "attention.causal",
                                           "attention.sliding_window",
                                           "rope.dimension_count",
                                           "rope.freq_base",
                                           "rope.scale_linear",
                                           "rope.scaling.type",
                                           "rope.scaling.factor",
                                           "rope.scaling.original_context_length",
                                           "rope.scaling.finetuned",
                                           "rope.scaling.attn_factor",
                                           "rope.scaling.yarn_ext_factor",
                                           "rope.scaling.yarn_attn_factor",
                                           "rope.scaling.yarn_beta_fast",
                                           "rope.scaling.yarn_beta_slow"};
// Of architecture deepseek2 alone.
constexpr std::string_view kDeepseekKeys[] = {"attention.q_lora_rank",     "attention.kv_lora_rank",
                                              "attention.key_length_mla",  "attention.value_length_mla",
                                              "leading_dense_block_count", "expert_feed_forward_length",
                                              "expert_shared_count",       "expert_weights_scale",
                                              "expert_weights_norm",       "expert_gating_func",
                                              "expert_group_count",        "expert_group_used_count",
                                              "nextn_predict_layers",      "rope.scaling.yarn_log_multiplier"};

}  // namespace

Result<double> GgufArchKeys::number(const char* name, double least, double most, double otherwise) const {
  FOVEA_ASSIGN(const auto x, h.number(key(name), least, most));
  return x.value_or(otherwise);
}

Result<int64_t> GgufArchKeys::same_in_all_layers(const char* name, int64_t least, int64_t most,
                                                 std::optional<int64_t> otherwise) const {
  FOVEA_ASSIGN(const std::vector<int64_t> all, h.integers(key(name)));
  if (all.empty() && otherwise) return *otherwise;
  if (all.empty() || all[0] < least || all[0] > most) {
    return h.wrong(key(name), "an integer from " + std::to_string(least) + " to " + std::to_string(most));
  }
  if (std::adjacent_find(all.begin(), all.end(), std::not_equal_to<>()) == all.end()) return all[0];
  return h.unsupported(key(name), "the same in all layers is");
}

Status GgufArchKeys::neutral(const char* name, double value) const {
  FOVEA_ASSIGN(const auto x, h.number(key(name), -1e30, 1e30));
  return !x || *x == value ? Status() : h.unsupported(key(name), "known: " + std::to_string(value));
}

Status GgufArchKeys::check_known() const {
  const std::string prefix = key("");
  for (const auto& [key, value] : h.metadata) {
    if (!key.starts_with(prefix)) continue;
    const std::string_view name = key.substr(prefix.size());
    if (std::ranges::find(kKnownKeys, name) != std::end(kKnownKeys)) continue;
    if (arch_ == "deepseek2" && std::ranges::find(kDeepseekKeys, name) != std::end(kDeepseekKeys)) continue;
    return h.unsupported(key, "it may change what is computed");
  }
  return Status();
}

}  // namespace fovea
