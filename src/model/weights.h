// The weights of a model as views, and the one list of them: what loads, places, makes up, counts or cuts weights walks it.
#pragma once

#include "kv/kv_scales.h"
#include "model/config.h"

#include <fovea/kernels/weight.h>
#include <fovea/status.h>
#include <fovea/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace fovea {

// Vectors are float32 whatever the file holds: they are small, and every kernel wants them so. Empty: the model has none.
using WeightVector = std::span<const float>;

// A layer of Llama, Qwen2 or Qwen3.
struct LayerWeights {
  WeightVector input_norm;              // [hidden]
  WeightView q, k, v, o;                // [q_size, hidden], [kv_size, hidden] twice, [hidden, q_size]
  WeightVector q_bias, k_bias, v_bias;  // [q_size], [kv_size] twice; with qkv_bias
  WeightVector o_bias;                  // [hidden]; with o_bias
  WeightVector q_norm, k_norm;          // [head_dim]; with qk_norm
  WeightVector post_attention_norm;     // [hidden]
  WeightView gate, up, down;            // [intermediate, hidden] twice, [hidden, intermediate]
  WeightVector gate_bias, up_bias;      // [intermediate]; with mlp_bias
  WeightVector down_bias;               // [hidden]; with mlp_bias
};

// The lightning indexer: Hi heads of di.
struct IndexerWeights {
  WeightView q_b;                    // [Hi di, q_lora_rank]
  WeightView k;                      // [di, hidden]
  WeightView head_weights;           // [Hi, hidden]
  WeightVector k_norm, k_norm_bias;  // [di] of a LayerNorm
};

struct MoeWeights {
  WeightView router;                        // [experts, hidden]
  WeightVector router_bias;                 // [experts] added to the scores for the choice alone; with router_bias
  std::vector<FeedForwardWeights> experts;  // [experts] f = moe_intermediate
  FeedForwardWeights shared;                // f = shared_experts * moe_intermediate
};

// A layer with latent attention. H heads; names of the dimensions as in DeepseekConfig.
struct DeepseekLayerWeights {
  WeightVector input_norm;           // [hidden]
  WeightView q_a, q_b;               // [q_lora_rank, hidden], [H qk_dim, q_lora_rank]; without q_lora_rank none of q_*, but:
  WeightView q;                      // [H qk_dim, hidden]
  WeightView kv_a;                   // [latent_dim, hidden]
  WeightView kv_b;                   // [H (nope_dim + v_dim), kv_lora_rank]: of each head W_UK, then W_UV
  WeightView o;                      // [hidden, H v_dim]
  WeightVector q_a_bias, kv_a_bias;  // [q_lora_rank], [latent_dim]; with qkv_bias
  WeightVector o_bias;               // [hidden]; with o_bias
  WeightVector q_a_norm, kv_a_norm;  // [q_lora_rank], [kv_lora_rank]
  IndexerWeights indexer;            // empty where the layer takes another's choice, or the model has none
  WeightVector post_attention_norm;  // [hidden]
  FeedForwardWeights dense;          // f = intermediate; empty where the layer has experts
  MoeWeights moe;                    // empty where it has none
};

struct ModelWeights {
  WeightView embed;                                   // [vocab, hidden]
  std::vector<LayerWeights> layers;                   // of a dense model; else empty
  std::vector<DeepseekLayerWeights> deepseek_layers;  // of a model with latent attention; else empty
  WeightVector final_norm;                            // [hidden]
  WeightView lm_head;                                 // [vocab, hidden]; the same data as embed where the head is tied
  KvScales kv_scales;                                 // of an fp8 cache
  int64_t widened = 0;                                // elements that files hold in fewer bits than memory does
  std::shared_ptr<const void> owner;                  // what the views point into; copies of ModelWeights share it
};

enum class WeightRole : uint8_t {
  norm,
  bias,       // vectors
  linear,     // Ops::linear multiplies by it, or moe_experts
  embedding,  // rows are looked up; a tied head multiplies by it too
  absorbed,   // of each head W_UK and W_UV: operations of latent attention read it, and Ops::linear
  decides,    // an expert router, or an indexer's weights of its heads: products in full precision
};

// Whether what reads it takes elements that stand for themselves alone: a quantised one is widened when it is loaded.
constexpr bool must_be_plain(WeightRole role) { return role == WeightRole::absorbed || role == WeightRole::decides; }

// What each of n devices holds when heads, experts' intermediates and the vocabulary are shared out.
enum class WeightSplit : uint8_t { none, rows, cols };  // everything; rows, or columns, [i / n, (i + 1) / n)

// A weight that the model has, and where its view goes: one of `matrix` and `vector` is null.
struct ListedWeight {
  std::string name;  // Hugging Face's: "model.layers.3.self_attn.q_proj.weight"
  WeightRole role = WeightRole::linear;
  WeightSplit split = WeightSplit::none;
  int64_t rows = 0;  // of a vector: its length
  int64_t cols = 1;
  WeightView* matrix = nullptr;
  WeightVector* vector = nullptr;

  size_t bytes() const { return matrix ? matrix->bytes() : vector->size_bytes(); }  // as they lie in memory
};

using WeightVisitor = std::function<Status(const ListedWeight&)>;

// Calls `visit` for every weight once, in a fixed order, until it fails. A tied head is no weight of its own: when all were
// visited lm_head becomes what embed is. Makes room for layers and experts.
Status for_each_weight(const ModelConfig& config, ModelWeights* weights, const WeightVisitor& visit);
// The same over a copy of the views.
Status for_each_weight(const ModelConfig& config, const ModelWeights& weights, const WeightVisitor& visit);

// Weights that models of this kind may have and this one must not: silently ignoring them would give wrong answers.
struct DeniedWeight {
  std::string name;
  const char* field;  // of config.json: what says so
};
std::vector<DeniedWeight> denied_weights(const ModelConfig& config);

// The matrices that Ops::linear multiplies by, experts among them: all but the embedding (a tied head is there as lm_head)
// and what decides.
std::vector<WeightView> linear_matrices(const ModelConfig& config, const ModelWeights& weights);

// Elements of all weights, a tied head counted once.
int64_t parameter_count(const ModelConfig& config);

// Of all matrices in memory, a tied head counted once: what a pass over the model reads.
int64_t matrix_bytes(const ModelConfig& config, const ModelWeights& weights);

}  // namespace fovea
