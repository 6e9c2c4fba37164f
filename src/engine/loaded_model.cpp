#include "engine/loaded_model.h"

#include "base/check.h"
#include "model/digest.h"
#include "model/gguf.h"
#include "model/kv_scales.h"
#include "model/model_text.h"
#include "model/tensor_source.h"

#include <algorithm>
#include <filesystem>
#include <map>

namespace fovea {
namespace {

Status load_text(const EngineOptions& options, LoadedModel* m) {
  Result<ModelTokenizer> text = load_tokenizer(options.model_dir);
  if (!text.ok() && text.status().code() != StatusCode::not_found) return std::move(text).status();
  if (text.ok()) {
    m->tokenizer = std::move(text->tokenizer);
    m->tokenizer_digest = digest_hex(text->digest);
    if (m->tokenizer->vocab_size() > m->config.vocab_size)
      return Status::corrupt(text->file + ": its largest id " + std::to_string(m->tokenizer->vocab_size() - 1) +
                             " is beyond the config's vocab_size " + std::to_string(m->config.vocab_size));
  }
  Result<std::unique_ptr<ModelChat>> chat = load_chat(options.model_dir, options.chat_template_kwargs);
  if (!chat.ok()) {
    // A base model has no template: its prompts are plain text.
    return chat.status().code() == StatusCode::not_found ? Status() : chat.status();
  }
  m->chat = std::move(chat).value();
  return {};
}

void describe_deepseek(const DeepseekConfig& d, ModelShape* shape) {
  shape->kv_lora_rank = d.kv_lora_rank;
  shape->rope_dim = d.rope_dim;
  shape->index_heads = d.index_heads;
  shape->index_dim = d.index_dim;
  shape->index_topk = d.index_topk;
  if (d.index_heads == 0) return;
  for (size_t i = 0; i < d.layer_indexes.size(); ++i) {
    if (!d.layer_indexes[i]) shape->shared_index_layers.push_back(static_cast<int32_t>(i));
  }
}

// Of an fp8 cache: from the file, or from the checkpoint.
Status load_kv_scales(const EngineOptions& o, LoadedModel* m) {
  if (!is_fp8(o.kv_cache_dtype)) return {};
  if (m->config.deepseek)
    return Status::unsupported("--kv-cache-dtype " + std::string(dtype_name(o.kv_cache_dtype)) + ": " + m->config.architecture +
                               " caches latents, in bf16, f16 or f32");
  if (!o.kv_scales.empty()) {
    FOVEA_ASSIGN(m->weights.kv_scales, read_kv_scales(o.kv_scales, m->config, o.kv_cache_dtype));
  } else if (!o.dummy_weights) {
    FOVEA_ASSIGN(const std::unique_ptr<TensorSource> tensors, open_tensors(o.model_dir));
    FOVEA_ASSIGN(m->weights.kv_scales, find_kv_scales(*tensors, m->config));
  }
  return {};
}

std::vector<WeightShare> weight_shares(const ModelConfig& config, const ModelWeights& weights) {
  std::map<std::string, WeightShare> by_type;
  const Status all = for_each_weight(config, weights, [&](const ListedWeight& w) {
    if (!w.matrix) return Status();
    WeightShare& share = by_type[std::string(weight_type_name(w.matrix->type))];
    share.parameters += w.rows * w.cols;
    share.bytes += static_cast<int64_t>(w.bytes());
    return Status();
  });
  FOVEA_CHECK(all.ok());
  std::vector<WeightShare> out;
  for (auto& [type, share] : by_type) out.push_back({type, share.parameters, share.bytes});
  std::ranges::stable_sort(out, [](const WeightShare& a, const WeightShare& b) { return a.parameters > b.parameters; });
  return out;
}

// What a user gets who sets nothing: greedy, unless the model asks to be sampled.
SamplingParams sampling_defaults(const SamplingDefaults& d) {
  SamplingParams s;
  s.repetition_penalty = d.repetition_penalty.value_or(s.repetition_penalty);
  if (!d.do_sample.value_or(false)) return s;
  s.temperature = d.temperature.value_or(1.0f);
  s.top_k = std::max(d.top_k.value_or(0), 0);  // -1: all
  s.top_p = d.top_p.value_or(s.top_p);
  s.min_p = d.min_p.value_or(s.min_p);
  return s;
}

}  // namespace

Status check_model_path(const std::string& model) {
  std::error_code error;
  if (is_gguf(model) && std::filesystem::is_regular_file(model, error)) return {};
  if (!is_gguf(model) && std::filesystem::is_directory(model, error)) return {};
  return Status::not_found("--model " + model + ": there is no such " +
                           (is_gguf(model) ? "file" : "directory, and no GGUF file has that name"));
}

Result<std::unique_ptr<LoadedModel>> load_model(const EngineOptions& options) {
  FOVEA_TRY(check_model_path(options.model_dir));
  auto m = std::make_unique<LoadedModel>();
  FOVEA_ASSIGN(m->config, load_model_config(options.model_dir));
  if (options.dummy_weights) {
    FOVEA_ASSIGN(m->weights, dummy_weights(m->config, options.seed, options.dummy_weight_type));
    FOVEA_ASSIGN(const Digest digest, dummy_model_digest(options.model_dir, options.seed, options.dummy_weight_type));
    m->model_digest = digest_hex(digest);
  } else {
    FOVEA_ASSIGN(m->weights, load_checkpoint(options.model_dir, m->config));
    FOVEA_ASSIGN(const Digest digest, model_digest(options.model_dir));
    m->model_digest = digest_hex(digest);
  }
  FOVEA_TRY(load_kv_scales(options, m.get()));
  FOVEA_TRY(load_text(options, m.get()));
  return m;
}

ModelInfo describe(const LoadedModel& model, const EngineOptions& options) {
  const ModelConfig& c = model.config;
  ModelInfo info;
  info.architecture = c.architecture;
  info.shape.num_layers = c.num_layers;
  info.shape.num_heads = c.num_heads;
  info.shape.kv_heads = c.num_kv_heads;
  info.shape.head_dim = c.head_dim;
  info.shape.block_size = options.block_size;
  // A key and a value; with latent attention the value is part of the key.
  const int64_t elements = c.deepseek ? c.head_dim : 2 * c.head_dim;
  info.shape.kv_bytes_per_token_head = elements * static_cast<int64_t>(dtype_bytes(options.kv_cache_dtype));
  if (c.deepseek) describe_deepseek(*c.deepseek, &info.shape);
  info.hidden_size = c.hidden_size;
  info.intermediate_size = c.intermediate_size;
  info.vocab_size = c.vocab_size;
  info.weight_bytes = matrix_bytes(c, model.weights);
  for (const WeightView& w : linear_matrices(c, model.weights)) info.step_weight_bytes += static_cast<int64_t>(w.bytes());
  info.weights = weight_shares(c, model.weights);
  info.widened_parameters = model.weights.widened;
  info.parameters = parameter_count(c);
  info.rope = std::string(rope_kind_name(c.rope.kind)) + " theta=" + std::to_string(c.rope.theta) +
              " factor=" + std::to_string(c.rope.factor) + " original=" + std::to_string(c.rope.original_max_position) +
              " attention=" + std::to_string(c.rope.attention_factor);
  info.max_position_embeddings = c.max_position_embeddings;
  info.max_model_len = options.max_model_len ? options.max_model_len : c.max_position_embeddings;
  info.has_tokenizer = model.tokenizer != nullptr;
  info.has_chat_template = model.chat != nullptr;
  info.sampling = sampling_defaults(c.sampling);
  return info;
}

}  // namespace fovea
