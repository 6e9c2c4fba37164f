// Where the weights of a model come from: its files, or a random generator.
#pragma once

#include "model/weights.h"

namespace fovea {

// Of a directory or a GGUF file. Matrices stay in the mapped file, but for what quantization.h says is made of quantised ones, for
// quantised ones that must be plain (weights.h), which are widened to f32 in memory of their own, and for queries' and keys' of
// Llama's GGUF files, whose rows are copied in another order (TensorInfo::row_pairs). Tensors of layers beyond
// num_layers (multi-token prediction) are not read.
// Errors: those of open_tensors, and for each tensor not_found, unsupported (dtype), corrupt (shape, or the config denies it)
// or resource_exhausted.
Result<ModelWeights> load_checkpoint(const std::string& model, const ModelConfig& config);

// Random weights of the model's shape: matrices of deviation 0.02 (bf16: from a normal distribution; quantised: random blocks, but
// bf16 where rows are no whole blocks), norms 1, biases 0; the same for the same config, seed and type on every machine. `type`: bf16
// or one that is quantised. Errors: resource_exhausted, invalid_argument (type).
Result<ModelWeights> dummy_weights(const ModelConfig& config, uint64_t seed, WeightType type = WeightType::bf16);

}  // namespace fovea
