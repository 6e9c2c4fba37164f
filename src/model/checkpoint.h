// The weights of a model, checked in shape and dtype, as named views.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <fovea/status.h>
#include <fovea/types.h>
#include "model/config.h"

namespace fovea {

// A weight matrix as stored: y[n] = sum over k of data[n, k] x[k].
struct WeightMatrix {
  const void* data = nullptr;  // [rows, cols], row-major, contiguous; aligned to the element size
  DType dtype = DType::bf16;   // bf16, f16 or f32
  int64_t rows = 0;            // outputs (N)
  int64_t cols = 0;            // inputs (K)
  size_t bytes() const { return static_cast<size_t>(rows * cols) * dtype_bytes(dtype); }
};

// Vectors are float32 whatever the file holds: they are small, and every kernel wants them so.

// A layer of Llama, Qwen2 or Qwen3.
struct LayerWeights {
  std::vector<float> input_norm;           // [hidden]
  WeightMatrix q, k, v, o;                 // [q_size, hidden], [kv_size, hidden] twice, [hidden, q_size]
  std::vector<float> q_bias;               // [q_size]; this and the next two empty without qkv_bias
  std::vector<float> k_bias, v_bias;       // [kv_size]
  std::vector<float> o_bias;               // [hidden]; empty without o_bias
  std::vector<float> q_norm, k_norm;       // [head_dim]; empty without qk_norm
  std::vector<float> post_attention_norm;  // [hidden]
  WeightMatrix gate, up, down;             // [intermediate, hidden] twice, [hidden, intermediate]
  std::vector<float> gate_bias,
      up_bias;                   // [intermediate]; this, up_bias and down_bias empty without mlp_bias
  std::vector<float> down_bias;  // [hidden]
};

// down(silu(gate x) * up x).
struct FeedForwardWeights {
  WeightMatrix gate, up, down;  // [f, hidden] twice, [hidden, f]
};

// The lightning indexer: Hi heads of di.
struct IndexerWeights {
  WeightMatrix q_b;                       // [Hi di, q_lora_rank]
  WeightMatrix k;                         // [di, hidden]
  WeightMatrix head_weights;              // [Hi, hidden]
  std::vector<float> k_norm, k_norm_bias;  // [di] of a LayerNorm
};

struct MoeWeights {
  WeightMatrix router;                      // [experts, hidden]
  std::vector<float> router_bias;           // [experts] added to the scores for the choice alone
  std::vector<FeedForwardWeights> experts;  // [experts] f = moe_intermediate
  FeedForwardWeights shared;                // f = shared_experts * moe_intermediate
};

// A layer of DeepSeek-V3.2 or GLM-5. H heads; names of the dimensions as in DeepseekConfig.
struct DeepseekLayerWeights {
  std::vector<float> input_norm;           // [hidden]
  WeightMatrix q_a, q_b;                   // [q_lora_rank, hidden], [H qk_dim, q_lora_rank]
  WeightMatrix kv_a;                       // [latent_dim, hidden]
  WeightMatrix kv_b;                       // [H (nope_dim + v_dim), kv_lora_rank]: of each head W_UK, then W_UV
  WeightMatrix o;                          // [hidden, H v_dim]
  std::vector<float> q_a_bias, kv_a_bias;  // [q_lora_rank], [latent_dim]; empty without qkv_bias
  std::vector<float> o_bias;               // [hidden]; empty without o_bias
  std::vector<float> q_a_norm, kv_a_norm;  // [q_lora_rank], [kv_lora_rank]
  IndexerWeights indexer;                  // empty where the layer takes another's choice
  std::vector<float> post_attention_norm;  // [hidden]
  FeedForwardWeights dense;                // f = intermediate; empty where the layer has experts
  MoeWeights moe;                          // empty where it has none
};

struct ModelWeights {
  WeightMatrix embed;  // [vocab, hidden]
  std::vector<LayerWeights> layers;                   // of a dense model; else empty
  std::vector<DeepseekLayerWeights> deepseek_layers;  // of a model with latent attention; else empty
  std::vector<float> final_norm;      // [hidden]
  WeightMatrix lm_head;               // [vocab, hidden]; the same data as embed where the head is tied
  size_t matrix_bytes = 0;            // of all matrices in memory, a tied head counted once
  std::shared_ptr<const void> owner;  // what the matrices point into; copies of ModelWeights share it
};

// The matrices that Ops::linear multiplies by, experts among them: all but the embedding (a tied head is there as lm_head)
// and routers.
std::vector<const WeightMatrix*> linear_matrices(const ModelWeights& weights);

// Matrices stay in the mapped file, but for fp8 blocks: those are widened to bf16 in memory of their own, 2 bytes a weight,
// and give up the file's pages. Tensors of layers beyond num_layers (multi-token prediction) are not read.
// Errors: those of TensorSource, and for each tensor not_found, unsupported (dtype), corrupt (shape) or resource_exhausted.
Result<ModelWeights> load_checkpoint(const std::string& model_dir, const ModelConfig& config);

// Random weights of the model's shape: bf16 matrices from a normal distribution of deviation 0.02, norms 1,
// biases 0; the same for the same config and seed on every machine. Errors: resource_exhausted.
Result<ModelWeights> dummy_weights(const ModelConfig& config, uint64_t seed);

}  // namespace fovea
