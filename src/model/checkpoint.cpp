#include "model/checkpoint.h"

#include <algorithm>
#include <iterator>

#include "model/checkpoint_deepseek.h"
#include "model/weight_taker.h"

namespace fovea {
namespace {

Status take_attention(WeightTaker& take, const ModelConfig& c, const std::string& at, LayerWeights* w) {
  const int64_t hidden = c.hidden_size, q = c.q_size(), kv = c.kv_size();
  FOVEA_TRY(take.matrix(at + "q_proj.weight", q, hidden, &w->q));
  FOVEA_TRY(take.matrix(at + "k_proj.weight", kv, hidden, &w->k));
  FOVEA_TRY(take.matrix(at + "v_proj.weight", kv, hidden, &w->v));
  FOVEA_TRY(take.matrix(at + "o_proj.weight", hidden, q, &w->o));
  if (c.qkv_bias) {
    FOVEA_TRY(take.vector(at + "q_proj.bias", q, &w->q_bias));
    FOVEA_TRY(take.vector(at + "k_proj.bias", kv, &w->k_bias));
    FOVEA_TRY(take.vector(at + "v_proj.bias", kv, &w->v_bias));
  }
  if (c.o_bias) FOVEA_TRY(take.vector(at + "o_proj.bias", hidden, &w->o_bias));
  if (c.qk_norm) {
    FOVEA_TRY(take.vector(at + "q_norm.weight", c.head_dim, &w->q_norm));
    FOVEA_TRY(take.vector(at + "k_norm.weight", c.head_dim, &w->k_norm));
  }
  return Status();
}

Status take_layer(WeightTaker& take, const ModelConfig& c, int layer, LayerWeights* w) {
  const int64_t hidden = c.hidden_size, inter = c.intermediate_size;
  const std::string at = "model.layers." + std::to_string(layer) + ".";
  FOVEA_TRY(take.vector(at + "input_layernorm.weight", hidden, &w->input_norm));
  FOVEA_TRY(take_attention(take, c, at + "self_attn.", w));
  FOVEA_TRY(take.vector(at + "post_attention_layernorm.weight", hidden, &w->post_attention_norm));
  FOVEA_TRY(take.matrix(at + "mlp.gate_proj.weight", inter, hidden, &w->gate));
  FOVEA_TRY(take.matrix(at + "mlp.up_proj.weight", inter, hidden, &w->up));
  FOVEA_TRY(take.matrix(at + "mlp.down_proj.weight", hidden, inter, &w->down));
  if (c.mlp_bias) {
    FOVEA_TRY(take.vector(at + "mlp.gate_proj.bias", inter, &w->gate_bias));
    FOVEA_TRY(take.vector(at + "mlp.up_proj.bias", inter, &w->up_bias));
    FOVEA_TRY(take.vector(at + "mlp.down_proj.bias", hidden, &w->down_bias));
  }
  return Status();
}

// A bias or a norm that the file holds and the config does not ask for.
Status refuse_unused(const WeightTaker& take, const ModelConfig& c) {
  const struct {
    const char* suffix;
    bool used;
    const char* field;
  } kOptional[] = {
      {"self_attn.q_proj.bias", c.qkv_bias, "attention_bias"},
      {"self_attn.k_proj.bias", c.qkv_bias, "attention_bias"},
      {"self_attn.v_proj.bias", c.qkv_bias, "attention_bias"},
      {"self_attn.o_proj.bias", c.o_bias, "attention_bias"},
      {"mlp.gate_proj.bias", c.mlp_bias, "mlp_bias"},
      {"mlp.up_proj.bias", c.mlp_bias, "mlp_bias"},
      {"mlp.down_proj.bias", c.mlp_bias, "mlp_bias"},
      {"self_attn.q_norm.weight", c.qk_norm, "architectures"},
      {"self_attn.k_norm.weight", c.qk_norm, "architectures"},
  };
  for (const auto& row : kOptional) {
    if (!row.used) FOVEA_TRY(take.refuse("model.layers.0." + std::string(row.suffix), row.field));
  }
  return Status();
}

}  // namespace

Result<ModelWeights> load_checkpoint(const std::string& model_dir, const ModelConfig& config) {
  FOVEA_ASSIGN(std::unique_ptr<TensorSource> source, open_tensors(model_dir));
  WeightTaker take(std::move(source), config.deepseek && config.deepseek->fp8_blocks);
  ModelWeights out;
  FOVEA_TRY(take.matrix("model.embed_tokens.weight", config.vocab_size, config.hidden_size, &out.embed));
  if (config.deepseek) {
    FOVEA_TRY(take_deepseek_layers(take, config, &out.deepseek_layers));
  } else {
    FOVEA_TRY(refuse_unused(take, config));
    out.layers.resize(static_cast<size_t>(config.num_layers));
    for (int i = 0; i < config.num_layers; ++i) FOVEA_TRY(take_layer(take, config, i, &out.layers[i]));
  }
  FOVEA_TRY(take.vector("model.norm.weight", config.hidden_size, &out.final_norm));
  if (config.tie_word_embeddings) {
    out.lm_head = out.embed;
  } else {
    FOVEA_TRY(take.matrix("lm_head.weight", config.vocab_size, config.hidden_size, &out.lm_head));
  }
  out.matrix_bytes = take.bytes();
  out.owner = take.owner();
  return out;
}

std::vector<const WeightMatrix*> linear_matrices(const ModelWeights& weights) {
  std::vector<const WeightMatrix*> all;
  const auto add = [&](std::initializer_list<const WeightMatrix*> some) {
    std::copy_if(some.begin(), some.end(), std::back_inserter(all), [](const WeightMatrix* w) { return w->data != nullptr; });
  };
  for (const LayerWeights& l : weights.layers) add({&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down});
  for (const DeepseekLayerWeights& l : weights.deepseek_layers) {
    add({&l.q_a, &l.q_b, &l.kv_a, &l.kv_b, &l.o, &l.indexer.q_b, &l.indexer.k, &l.indexer.head_weights});
    add({&l.dense.gate, &l.dense.up, &l.dense.down, &l.moe.shared.gate, &l.moe.shared.up, &l.moe.shared.down});
    for (const FeedForwardWeights& e : l.moe.experts) add({&e.gate, &e.up, &e.down});
  }
  add({&weights.lm_head});
  return all;
}

}  // namespace fovea
