#include "model/weights.h"

namespace fovea {
namespace {

using Split = WeightSplit;

// Collects the list: names under a prefix, beside the field that denies them where the config has one.
class WeightList {
 public:
  void under(std::string prefix) { prefix_ = std::move(prefix); }
  void matrix(WeightView* to, const char* name, int64_t rows, int64_t cols, Split split, WeightRole role = WeightRole::linear) {
    listed.push_back({prefix_ + name, role, split, rows, cols, to, nullptr});
  }
  void norm(WeightVector* to, const char* name, int64_t size) { vector(to, name, size, Split::none, WeightRole::norm); }
  void bias(WeightVector* to, const char* name, int64_t size, Split split) { vector(to, name, size, split, WeightRole::bias); }
  void bias_if(bool there, const char* field, WeightVector* to, const char* name, int64_t size, Split split) {
    there ? bias(to, name, size, split) : denied.push_back({prefix_ + name, field});
  }
  void norm_if(bool there, const char* field, WeightVector* to, const char* name, int64_t size) {
    there ? norm(to, name, size) : denied.push_back({prefix_ + name, field});
  }
  void feed_forward(FeedForwardWeights* to, int64_t hidden, int64_t inter) {
    matrix(&to->gate, "gate_proj.weight", inter, hidden, Split::rows);
    matrix(&to->up, "up_proj.weight", inter, hidden, Split::rows);
    matrix(&to->down, "down_proj.weight", hidden, inter, Split::cols);
  }

  std::vector<ListedWeight> listed;
  std::vector<DeniedWeight> denied;

 private:
  void vector(WeightVector* to, const char* name, int64_t size, Split split, WeightRole role) {
    listed.push_back({prefix_ + name, role, split, size, 1, nullptr, to});
  }
  std::string prefix_;
};

void list_layer(const ModelConfig& c, const std::string& at, LayerWeights* w, WeightList* list) {
  const int64_t hidden = c.hidden_size, q = c.q_size(), kv = c.kv_size(), inter = c.intermediate_size;
  list->under(at);
  list->norm(&w->input_norm, "input_layernorm.weight", hidden);
  list->under(at + "self_attn.");
  list->matrix(&w->q, "q_proj.weight", q, hidden, Split::rows);
  list->matrix(&w->k, "k_proj.weight", kv, hidden, Split::rows);
  list->matrix(&w->v, "v_proj.weight", kv, hidden, Split::rows);
  list->matrix(&w->o, "o_proj.weight", hidden, q, Split::cols);
  list->bias_if(c.qkv_bias, "attention_bias", &w->q_bias, "q_proj.bias", q, Split::rows);
  list->bias_if(c.qkv_bias, "attention_bias", &w->k_bias, "k_proj.bias", kv, Split::rows);
  list->bias_if(c.qkv_bias, "attention_bias", &w->v_bias, "v_proj.bias", kv, Split::rows);
  list->bias_if(c.o_bias, "attention_bias", &w->o_bias, "o_proj.bias", hidden, Split::none);
  list->norm_if(c.qk_norm, "architectures", &w->q_norm, "q_norm.weight", c.head_dim);
  list->norm_if(c.qk_norm, "architectures", &w->k_norm, "k_norm.weight", c.head_dim);
  list->under(at);
  list->norm(&w->post_attention_norm, "post_attention_layernorm.weight", hidden);
  list->under(at + "mlp.");
  list->matrix(&w->gate, "gate_proj.weight", inter, hidden, Split::rows);
  list->matrix(&w->up, "up_proj.weight", inter, hidden, Split::rows);
  list->matrix(&w->down, "down_proj.weight", hidden, inter, Split::cols);
  list->bias_if(c.mlp_bias, "mlp_bias", &w->gate_bias, "gate_proj.bias", inter, Split::rows);
  list->bias_if(c.mlp_bias, "mlp_bias", &w->up_bias, "up_proj.bias", inter, Split::rows);
  list->bias_if(c.mlp_bias, "mlp_bias", &w->down_bias, "down_proj.bias", hidden, Split::none);
}

void list_latent_attention(const ModelConfig& c, const std::string& at, DeepseekLayerWeights* w, WeightList* list) {
  const DeepseekConfig& d = *c.deepseek;
  const int64_t hidden = c.hidden_size, heads = c.num_heads;
  list->under(at);
  if (d.q_lora_rank > 0) {
    list->matrix(&w->q_a, "q_a_proj.weight", d.q_lora_rank, hidden, Split::none);
    list->norm(&w->q_a_norm, "q_a_layernorm.weight", d.q_lora_rank);
    list->matrix(&w->q_b, "q_b_proj.weight", heads * d.qk_dim(), d.q_lora_rank, Split::rows);
  } else {
    list->matrix(&w->q, "q_proj.weight", heads * d.qk_dim(), hidden, Split::rows);
  }
  list->matrix(&w->kv_a, "kv_a_proj_with_mqa.weight", d.latent_dim(), hidden, Split::none);
  list->norm(&w->kv_a_norm, "kv_a_layernorm.weight", d.kv_lora_rank);
  list->matrix(&w->kv_b, "kv_b_proj.weight", heads * (d.nope_dim + d.v_dim), d.kv_lora_rank, Split::rows, WeightRole::absorbed);
  list->matrix(&w->o, "o_proj.weight", hidden, heads * d.v_dim, Split::cols);
  list->bias_if(c.qkv_bias && d.q_lora_rank > 0, "attention_bias", &w->q_a_bias, "q_a_proj.bias", d.q_lora_rank, Split::none);
  list->bias_if(c.qkv_bias, "attention_bias", &w->kv_a_bias, "kv_a_proj_with_mqa.bias", d.latent_dim(), Split::none);
  list->bias_if(c.o_bias, "attention_bias", &w->o_bias, "o_proj.bias", hidden, Split::none);
}

void list_indexer(const ModelConfig& c, const std::string& at, IndexerWeights* w, WeightList* list) {
  const DeepseekConfig& d = *c.deepseek;
  list->under(at);
  list->matrix(&w->q_b, "wq_b.weight", int64_t{d.index_heads} * d.index_dim, d.q_lora_rank, Split::none);
  list->matrix(&w->k, "wk.weight", d.index_dim, c.hidden_size, Split::none);
  list->norm(&w->k_norm, "k_norm.weight", d.index_dim);
  list->bias(&w->k_norm_bias, "k_norm.bias", d.index_dim, Split::none);
  list->matrix(&w->head_weights, "weights_proj.weight", d.index_heads, c.hidden_size, Split::none, WeightRole::decides);
}

void list_experts(const ModelConfig& c, const std::string& at, MoeWeights* w, WeightList* list) {
  const DeepseekConfig& d = *c.deepseek;
  w->experts.resize(static_cast<size_t>(d.experts));
  list->under(at);
  list->matrix(&w->router, "gate.weight", d.experts, c.hidden_size, Split::none, WeightRole::decides);
  list->bias_if(d.router_bias, "topk_method", &w->router_bias, "gate.e_score_correction_bias", d.experts, Split::none);
  for (size_t e = 0; e < w->experts.size(); ++e) {
    list->under(at + "experts." + std::to_string(e) + ".");
    list->feed_forward(&w->experts[e], c.hidden_size, d.moe_intermediate);
  }
  list->under(at + "shared_experts.");
  list->feed_forward(&w->shared, c.hidden_size, d.shared_intermediate());
}

void list_deepseek_layer(const ModelConfig& c, size_t layer, const std::string& at, DeepseekLayerWeights* w, WeightList* list) {
  list->under(at);
  list->norm(&w->input_norm, "input_layernorm.weight", c.hidden_size);
  list_latent_attention(c, at + "self_attn.", w, list);
  if (c.deepseek->layer_indexes[layer]) list_indexer(c, at + "self_attn.indexer.", &w->indexer, list);
  list->under(at);
  list->norm(&w->post_attention_norm, "post_attention_layernorm.weight", c.hidden_size);
  if (c.deepseek->layer_moe[layer]) return list_experts(c, at + "mlp.", &w->moe, list);
  list->under(at + "mlp.");
  list->feed_forward(&w->dense, c.hidden_size, c.intermediate_size);
}

WeightList make_list(const ModelConfig& c, ModelWeights* w) {
  const auto layers = static_cast<size_t>(c.num_layers);
  c.deepseek ? w->deepseek_layers.resize(layers) : w->layers.resize(layers);
  WeightList list;
  list.matrix(&w->embed, "model.embed_tokens.weight", c.vocab_size, c.hidden_size, Split::rows, WeightRole::embedding);
  for (size_t i = 0; i < layers; ++i) {
    const std::string at = "model.layers." + std::to_string(i) + ".";
    c.deepseek ? list_deepseek_layer(c, i, at, &w->deepseek_layers[i], &list) : list_layer(c, at, &w->layers[i], &list);
  }
  list.under("");
  list.norm(&w->final_norm, "model.norm.weight", c.hidden_size);
  if (!c.tie_word_embeddings) list.matrix(&w->lm_head, "lm_head.weight", c.vocab_size, c.hidden_size, Split::rows);
  return list;
}

}  // namespace

Status for_each_weight(const ModelConfig& config, ModelWeights* weights, const WeightVisitor& visit) {
  for (const ListedWeight& w : make_list(config, weights).listed) FOVEA_TRY(visit(w));
  if (config.tie_word_embeddings) weights->lm_head = weights->embed;
  return Status();
}

Status for_each_weight(const ModelConfig& config, const ModelWeights& weights, const WeightVisitor& visit) {
  ModelWeights views = weights;
  return for_each_weight(config, &views, visit);
}

std::vector<DeniedWeight> denied_weights(const ModelConfig& config) {
  ModelWeights none;
  return make_list(config, &none).denied;
}

std::vector<WeightView> linear_matrices(const ModelConfig& config, const ModelWeights& weights) {
  ModelWeights views = weights;
  std::vector<WeightView> all;
  for (const ListedWeight& w : make_list(config, &views).listed) {
    if (w.role == WeightRole::linear || w.role == WeightRole::absorbed) all.push_back(*w.matrix);
  }
  if (config.tie_word_embeddings) all.push_back(weights.lm_head);
  return all;
}

int64_t parameter_count(const ModelConfig& config) {
  ModelWeights none;
  int64_t sum = 0;
  for (const ListedWeight& w : make_list(config, &none).listed) sum += w.rows * w.cols;
  return sum;
}

int64_t matrix_bytes(const ModelConfig& config, const ModelWeights& weights) {
  ModelWeights views = weights;
  int64_t sum = 0;
  for (const ListedWeight& w : make_list(config, &views).listed) sum += w.matrix ? static_cast<int64_t>(w.bytes()) : 0;
  return sum;
}

}  // namespace fovea
