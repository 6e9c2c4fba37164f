// The text side of a model, from its directory or its GGUF file.
#pragma once

#include <memory>
#include <string>

#include <fovea/status.h>
#include "model/digest.h"
#include "model/gguf_header.h"
#include "text/jinja/model_chat.h"
#include "text/tokenizer/tokenizer.h"

namespace fovea {

struct ModelTokenizer {
  std::unique_ptr<Tokenizer> tokenizer;
  Digest digest;     // of what it was made from
  std::string file;  // that it was read from
};

// Errors: not_found where the model has none.
Result<ModelTokenizer> load_tokenizer(const std::string& model);

// variables: see ModelChat. Errors: not_found where the model has no chat template.
Result<std::unique_ptr<ModelChat>> load_chat(const std::string& model, const std::string& variables = {});

// From the keys tokenizer.ggml.*; of one that this build does not know: unsupported, naming it.
Result<std::unique_ptr<Tokenizer>> gguf_tokenizer(const GgufHeader& header);

// From the keys tokenizer.chat_template and tokenizer.ggml.*_token_id.
Result<ChatTemplateSource> gguf_chat_template(const GgufHeader& header);

}  // namespace fovea
