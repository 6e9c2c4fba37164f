// Where the weights of a model come from: its files, or a random generator.
#pragma once

#include "model/weights.h"

namespace fovea {

// Matrices stay in the mapped file, but for fp8 blocks: those are widened to bf16 in memory of their own, 2 bytes a weight,
// and give up the file's pages. Tensors of layers beyond num_layers (multi-token prediction) are not read.
// Errors: those of open_tensors, and for each tensor not_found, unsupported (dtype), corrupt (shape, or the config denies it)
// or resource_exhausted.
Result<ModelWeights> load_checkpoint(const std::string& model_dir, const ModelConfig& config);

// Random weights of the model's shape: bf16 matrices from a normal distribution of deviation 0.02, norms 1,
// biases 0; the same for the same config and seed on every machine. Errors: resource_exhausted.
Result<ModelWeights> dummy_weights(const ModelConfig& config, uint64_t seed);

}  // namespace fovea
