// DeepseekConfig from the keys of a GGUF file.
#include "model/config_deepseek.h"
#include "model/config_fields.h"
#include "model/gguf.h"
#include "model/gguf_arch_keys.h"

namespace fovea {
namespace {

// A width that kernels read in vectors of 16.
Status check_width(const GgufArchKeys& k, const char* name, int64_t n, int64_t most) {
  if (n < 1 || n > most) return k.h.wrong(k.key(name), "a width that leaves from 1 to " + std::to_string(most));
  return n % 16 == 0 ? Status() : k.h.unsupported(k.key(name), "widths of multiples of 16 are");
}

// Files with *_mla keys have of keys and values the sizes that the cache has, and of heads' own these; older ones heads' own alone.
Status read_latents(const GgufArchKeys& k, DeepseekConfig* d) {
  FOVEA_ASSIGN(const int64_t rank, k.required("attention.kv_lora_rank", 1, kWidthMax));
  FOVEA_ASSIGN(const int64_t rope, k.required("rope.dimension_count", 1, kWidthMax));
  FOVEA_ASSIGN(const auto q_rank, k.integer("attention.q_lora_rank", 0, kWidthMax));
  const bool absorbed = k.find("attention.key_length_mla") != nullptr;
  const char* const key = absorbed ? "attention.key_length_mla" : "attention.key_length";
  const char* const value = absorbed ? "attention.value_length_mla" : "attention.value_length";
  FOVEA_ASSIGN(const int64_t key_length, k.required(key, 1, kWidthMax));
  FOVEA_ASSIGN(const int64_t value_length, k.required(value, 1, kWidthMax));
  FOVEA_TRY(check_width(k, "attention.kv_lora_rank", rank, kLatentMax));
  FOVEA_TRY(check_width(k, "rope.dimension_count", rope, kRopeDimMax));
  FOVEA_TRY(check_width(k, key, key_length - rope, kPartDimMax));
  FOVEA_TRY(check_width(k, value, value_length, kPartDimMax));
  d->q_lora_rank = static_cast<int32_t>(q_rank.value_or(0));
  d->kv_lora_rank = static_cast<int32_t>(rank);
  d->rope_dim = static_cast<int32_t>(rope);
  d->nope_dim = static_cast<int32_t>(key_length - rope);
  d->v_dim = static_cast<int32_t>(value_length);
  return Status();
}

// V2 chooses by softmax, and judges a group by its best expert; V3 by sigmoid, and by the best two.
Status read_scoring(const GgufArchKeys& k, const GgufSource& source, int64_t first_moe, DeepseekConfig* d) {
  enum : int64_t { kSoftmax = 1, kSigmoid = 2 };
  d->router_bias = source.find("model.layers." + std::to_string(first_moe) + ".mlp.gate.e_score_correction_bias") != nullptr;
  FOVEA_ASSIGN(const auto gating, k.integer("expert_gating_func", 0, INT32_MAX));
  const int64_t stated = gating.value_or(0) != 0 ? *gating : d->router_bias ? kSigmoid : kSoftmax;
  if (stated != kSoftmax && stated != kSigmoid)
    return k.h.unsupported(k.key("expert_gating_func"), "known: 1 (softmax) 2 (sigmoid)");
  d->scoring = stated == kSigmoid ? ExpertScoring::sigmoid : ExpertScoring::softmax;
  d->group_top = stated == kSigmoid ? 2 : 1;
  FOVEA_ASSIGN(const auto normalize, k.h.boolean(k.key("expert_weights_norm")));
  FOVEA_ASSIGN(const double scale, k.number("expert_weights_scale", 0, 1e6, 1));
  d->normalize_weights = normalize.value_or(false);
  d->routed_scaling = scale == 0 ? 1.0f : static_cast<float>(scale);  // as llama.cpp has it
  return Status();
}

Status read_groups(const GgufArchKeys& k, DeepseekConfig* d) {
  FOVEA_ASSIGN(const int64_t top_k, k.required("expert_used_count", 1, kExpertsMax));
  FOVEA_ASSIGN(const auto stated_groups, k.integer("expert_group_count", 0, kExpertGroupsMax));
  FOVEA_ASSIGN(const auto stated_top, k.integer("expert_group_used_count", 0, kExpertGroupsMax));
  const int64_t groups = std::max<int64_t>(stated_groups.value_or(1), 1), size = d->experts / groups;
  const int64_t top_groups = groups == 1 ? 1 : stated_top.value_or(0);
  if (d->experts % groups != 0 || (groups > 1 && size < d->group_top)) {
    return k.h.wrong(k.key("expert_group_count"), "a divisor of " + std::to_string(d->experts) + " experts that leaves " +
                                                      std::to_string(d->group_top) + " or more in a group");
  }
  if (top_groups < 1 || top_groups > groups)
    return k.h.wrong(k.key("expert_group_used_count"), "a number from 1 to " + std::to_string(groups));
  if (top_k > top_groups * size)
    return k.h.wrong(k.key("expert_used_count"), "at most the " + std::to_string(top_groups * size) + " experts of the groups");
  d->experts_per_token = static_cast<int32_t>(top_k);
  d->expert_groups = static_cast<int32_t>(groups);
  d->top_groups = static_cast<int32_t>(top_groups);
  return Status();
}

Status read_experts(const GgufArchKeys& k, const GgufSource& source, const ModelConfig& c, DeepseekConfig* d) {
  FOVEA_TRY(k.neutral("nextn_predict_layers", 0));
  FOVEA_ASSIGN(const auto dense, k.integer("leading_dense_block_count", 0, INT32_MAX));
  const int64_t first = std::min<int64_t>(dense.value_or(0), c.num_layers), layers = c.num_layers - first;
  d->layer_moe.assign(static_cast<size_t>(c.num_layers), 1);
  std::fill_n(d->layer_moe.begin(), first, 0);
  if (layers == 0) return Status();
  FOVEA_ASSIGN(const int64_t experts, k.required("expert_count", 1, kExpertsMax));
  if (experts * layers > kExpertsOfAllLayersMax) {
    return k.h.wrong(k.key("expert_count"),
                     "at most " + std::to_string(kExpertsOfAllLayersMax) + " over " + std::to_string(layers) + " layers");
  }
  FOVEA_ASSIGN(const int64_t shared, k.required("expert_shared_count", 1, kSharedExpertsMax));
  FOVEA_ASSIGN(const int64_t inter, k.required("expert_feed_forward_length", 1, kWidthMax / kSharedExpertsMax));
  d->experts = static_cast<int32_t>(experts);
  d->shared_experts = static_cast<int32_t>(shared);
  d->moe_intermediate = static_cast<int32_t>(inter);
  FOVEA_TRY(read_scoring(k, source, first, d));
  return read_groups(k, d);
}

}  // namespace

Status read_gguf_deepseek(const GgufArchKeys& k, const GgufSource& source, ModelConfig* c) {
  DeepseekConfig d;
  FOVEA_ASSIGN(const int64_t heads, k.same_in_all_layers("attention.head_count", 1, kHeadsMax, std::nullopt));
  FOVEA_TRY(read_latents(k, &d));
  FOVEA_TRY(read_experts(k, source, *c, &d));
  d.layer_indexes.assign(static_cast<size_t>(c->num_layers), 0);
  c->num_heads = static_cast<int32_t>(heads);
  c->num_kv_heads = 1;
  c->head_dim = d.latent_dim();
  if (d.experts > 0 && d.scoring == ExpertScoring::softmax) {
    c->arch = Arch::deepseek_v2;
    c->architecture = "DeepseekV2ForCausalLM";
  }
  c->deepseek = std::move(d);
  return Status();
}

}  // namespace fovea
