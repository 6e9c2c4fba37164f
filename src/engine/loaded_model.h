// LoadedModel: everything that a model directory or a GGUF file holds, in host memory.
#pragma once

#include "model/checkpoint.h"
#include "model/config.h"
#include "text/jinja/model_chat.h"
#include "text/tokenizer/tokenizer.h"

#include <fovea/engine.h>
#include <fovea/options.h>

#include <memory>
#include <optional>
#include <string>

namespace fovea {

struct LoadedModel {
  ModelConfig config;
  ModelWeights weights;
  std::unique_ptr<Tokenizer> tokenizer;  // null: the model has none; token ids still work
  std::unique_ptr<ModelChat> chat;       // null: it has no chat template
  std::string model_digest;
  std::string tokenizer_digest;
};

// Refuses what is neither a directory nor a file NAME.gguf: not_found.
Status check_model_path(const std::string& model);

// Errors name the file, field and value. With dummy_weights only the config has to be there.
Result<std::unique_ptr<LoadedModel>> load_model(const EngineOptions& options);

ModelInfo describe(const LoadedModel& model, const EngineOptions& options);

}  // namespace fovea
