// The weights of a dense Llama, Qwen2 or Qwen3 model, checked in shape and dtype, as named views.
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

struct ModelWeights {
  WeightMatrix embed;  // [vocab, hidden]
  std::vector<LayerWeights> layers;
  std::vector<float> final_norm;      // [hidden]
  WeightMatrix lm_head;               // [vocab, hidden]; the same data as embed where the head is tied
  size_t matrix_bytes = 0;            // of all matrices, a tied head counted once
  std::shared_ptr<const void> owner;  // what the matrices point into; copies of ModelWeights share it
};

// Errors: those of WeightMap, and for each tensor not_found, unsupported (dtype) or corrupt (shape).
Result<ModelWeights> load_checkpoint(const std::string& model_dir, const ModelConfig& config);

// Random weights of the model's shape: bf16 matrices from a normal distribution of deviation 0.02, norms 1,
// biases 0; the same for the same config and seed on every machine. Errors: resource_exhausted.
Result<ModelWeights> dummy_weights(const ModelConfig& config, uint64_t seed);

}  // namespace fovea
