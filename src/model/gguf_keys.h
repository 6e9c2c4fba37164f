// The keys of a GGUF file for a model that comes from elsewhere: what gguf_model_config, gguf_tokenizer and gguf_chat_template read.
#pragma once

#include <string>
#include <vector>

#include <fovea/status.h>
#include "model/config.h"
#include "model/gguf_writer.h"

namespace fovea {

// Of a directory of Hugging Face's: architecture, shape, rope, sampling, vocabulary, ends of an answer, chat template. Without
// tokenizer.json the file has no vocabulary. Errors name the directory and what no such file can say: unsupported; and those of
// load_tokenizer and load_chat_template.
Status write_gguf_keys(const std::string& dir, const ModelConfig& config, GgufWriter* out);

// Of another GGUF file: all but those that are about its data.
void copy_gguf_keys(const GgufHeader& from, GgufWriter* out);

// The tensor rope_freqs.weight: what each frequency is divided by, [head_dim / 2]; empty: the model needs none.
std::vector<float> gguf_rope_divisors(const ModelConfig& config);

}  // namespace fovea
