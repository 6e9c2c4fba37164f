#include "model/checkpoint_deepseek.h"

namespace fovea {
namespace {

Status take_attention(WeightTaker& take, const ModelConfig& c, const std::string& at, DeepseekLayerWeights* w) {
  const DeepseekConfig& d = *c.deepseek;
  const int64_t hidden = c.hidden_size, heads = c.num_heads;
  FOVEA_TRY(take.matrix(at + "q_a_proj.weight", d.q_lora_rank, hidden, &w->q_a));
  FOVEA_TRY(take.vector(at + "q_a_layernorm.weight", d.q_lora_rank, &w->q_a_norm));
  FOVEA_TRY(take.matrix(at + "q_b_proj.weight", heads * d.qk_dim(), d.q_lora_rank, &w->q_b));
  FOVEA_TRY(take.matrix(at + "kv_a_proj_with_mqa.weight", d.latent_dim(), hidden, &w->kv_a));
  FOVEA_TRY(take.vector(at + "kv_a_layernorm.weight", d.kv_lora_rank, &w->kv_a_norm));
  FOVEA_TRY(take.matrix(at + "kv_b_proj.weight", heads * (d.nope_dim + d.v_dim), d.kv_lora_rank, &w->kv_b));
  FOVEA_TRY(take.matrix(at + "o_proj.weight", hidden, heads * d.v_dim, &w->o));
  const struct {
    const char* name;
    bool used;
    int64_t size;
    std::vector<float>* to;
  } kBiases[] = {{"q_a_proj.bias", c.qkv_bias, d.q_lora_rank, &w->q_a_bias},
                 {"kv_a_proj_with_mqa.bias", c.qkv_bias, d.latent_dim(), &w->kv_a_bias},
                 {"o_proj.bias", c.o_bias, hidden, &w->o_bias}};
  for (const auto& bias : kBiases) {
    FOVEA_TRY(bias.used ? take.vector(at + bias.name, bias.size, bias.to) : take.refuse(at + bias.name, "attention_bias"));
  }
  return Status();
}

Status take_indexer(WeightTaker& take, const ModelConfig& c, const std::string& at, IndexerWeights* w) {
  const DeepseekConfig& d = *c.deepseek;
  FOVEA_TRY(take.matrix(at + "wq_b.weight", int64_t{d.index_heads} * d.index_dim, d.q_lora_rank, &w->q_b));
  FOVEA_TRY(take.matrix(at + "wk.weight", d.index_dim, c.hidden_size, &w->k));
  FOVEA_TRY(take.vector(at + "k_norm.weight", d.index_dim, &w->k_norm));
  FOVEA_TRY(take.vector(at + "k_norm.bias", d.index_dim, &w->k_norm_bias));
  return take.matrix(at + "weights_proj.weight", d.index_heads, c.hidden_size, &w->head_weights);
}

Status take_feed_forward(WeightTaker& take, int64_t hidden, int64_t inter, const std::string& at, FeedForwardWeights* w) {
  FOVEA_TRY(take.matrix(at + "gate_proj.weight", inter, hidden, &w->gate));
  FOVEA_TRY(take.matrix(at + "up_proj.weight", inter, hidden, &w->up));
  return take.matrix(at + "down_proj.weight", hidden, inter, &w->down);
}

// The operation takes all experts of a layer in one dtype.
Status check_dtypes(const WeightTaker& take, const std::string& at, const std::vector<FeedForwardWeights>& experts) {
  const DType dtype = experts[0].gate.dtype;
  for (size_t e = 0; e < experts.size(); ++e) {
    const FeedForwardWeights& w = experts[e];
    if (w.gate.dtype == dtype && w.up.dtype == dtype && w.down.dtype == dtype) continue;
    return Status::unsupported(take.source() + ": tensors " + at + "experts." + std::to_string(e) + ": not all of dtype " +
                               std::string(dtype_name(dtype)) + ", as experts.0.gate_proj is");
  }
  return Status();
}

Status take_moe(WeightTaker& take, const ModelConfig& c, const std::string& at, MoeWeights* w) {
  const DeepseekConfig& d = *c.deepseek;
  FOVEA_TRY(take.matrix(at + "gate.weight", d.experts, c.hidden_size, &w->router));
  FOVEA_TRY(take.vector(at + "gate.e_score_correction_bias", d.experts, &w->router_bias));
  w->experts.resize(static_cast<size_t>(d.experts));
  for (int32_t e = 0; e < d.experts; ++e) {
    FOVEA_TRY(take_feed_forward(take, c.hidden_size, d.moe_intermediate, at + "experts." + std::to_string(e) + ".", &w->experts[e]));
  }
  FOVEA_TRY(check_dtypes(take, at, w->experts));
  return take_feed_forward(take, c.hidden_size, d.shared_intermediate(), at + "shared_experts.", &w->shared);
}

}  // namespace

Status take_deepseek_layers(WeightTaker& take, const ModelConfig& c, std::vector<DeepseekLayerWeights>* out) {
  const DeepseekConfig& d = *c.deepseek;
  out->resize(static_cast<size_t>(c.num_layers));
  for (size_t i = 0; i < out->size(); ++i) {
    DeepseekLayerWeights& w = (*out)[i];
    const std::string at = "model.layers." + std::to_string(i) + ".";
    FOVEA_TRY(take.vector(at + "input_layernorm.weight", c.hidden_size, &w.input_norm));
    FOVEA_TRY(take_attention(take, c, at + "self_attn.", &w));
    if (d.layer_indexes[i]) FOVEA_TRY(take_indexer(take, c, at + "self_attn.indexer.", &w.indexer));
    FOVEA_TRY(take.vector(at + "post_attention_layernorm.weight", c.hidden_size, &w.post_attention_norm));
    FOVEA_TRY(d.layer_moe[i] ? take_moe(take, c, at + "mlp.", &w.moe)
                             : take_feed_forward(take, c.hidden_size, c.intermediate_size, at + "mlp.", &w.dense));
  }
  return Status();
}

}  // namespace fovea
