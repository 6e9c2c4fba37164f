// ModelConfig from the metadata of a GGUF file.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>

#include "model/config_deepseek.h"
#include "model/config_fields.h"
#include "model/gguf.h"
#include "model/gguf_arch_keys.h"
#include "model/json_reader.h"

namespace fovea {
namespace {

struct GgufArch {
  std::string_view name;  // general.architecture
  Arch arch;
  std::string_view architecture;  // config.json's word
};
constexpr GgufArch kGgufArchs[] = {{"llama", Arch::llama, "LlamaForCausalLM"},
                                   {"qwen2", Arch::qwen2, "Qwen2ForCausalLM"},
                                   {"qwen3", Arch::qwen3, "Qwen3ForCausalLM"},
                                   {"deepseek2", Arch::deepseek_v3, "DeepseekV3ForCausalLM"}};

// Control tokens that end an answer in the models of these architectures, whatever else the file says: many files name one of
// several.
constexpr std::string_view kEndTokens[] = {"<|eot_id|>",    "<|eom_id|>",    "<|im_end|>",      "<|end|>",
                                           "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>",
                                           "</s>"};

Result<const GgufArch*> find_arch(const GgufHeader& h) {
  FOVEA_ASSIGN(const std::string_view type, h.text("general.type"));
  if (!type.empty() && type != "model") return h.unsupported("general.type", "known: model");
  FOVEA_ASSIGN(const std::string_view name, h.text("general.architecture"));
  for (const GgufArch& row : kGgufArchs) {
    if (row.name == name) return &row;
  }
  std::string known = "known:";
  for (const GgufArch& row : kGgufArchs) known += (&row == kGgufArchs ? " " : ", ") + std::string(row.name);
  return h.unsupported("general.architecture", known);
}

Status read_sizes(const GgufArchKeys& k, const GgufSource& source, ModelConfig* c) {
  FOVEA_ASSIGN(const int64_t layers, k.required("block_count", 1, kLayersMax));
  FOVEA_ASSIGN(const int64_t hidden, k.required("embedding_length", 1, kWidthMax));
  FOVEA_ASSIGN(const int64_t inter, k.same_in_all_layers("feed_forward_length", 1, kWidthMax, std::nullopt));
  FOVEA_ASSIGN(c->max_position_embeddings, k.required("context_length", 1, kPositionsMax));
  FOVEA_ASSIGN(const auto vocab, k.integer("vocab_size", 1, kVocabMax));
  FOVEA_ASSIGN(const auto eps, k.h.number(k.key("attention.layer_norm_rms_epsilon"), 0.0, 1.0));
  if (!eps) return k.h.wrong(k.key("attention.layer_norm_rms_epsilon"), "a number");
  const TensorInfo* embed = source.find("model.embed_tokens.weight");
  if (embed == nullptr || embed->shape.size() != 2 || embed->shape[0] > kVocabMax) {
    return Status::corrupt(k.h.where + ": tensor \"token_embd.weight\" is missing or no matrix");
  }
  if (vocab && *vocab != embed->shape[0]) {
    return k.h.wrong(k.key("vocab_size"), std::to_string(embed->shape[0]) + ", the rows of token_embd.weight");
  }
  c->num_layers = static_cast<int32_t>(layers);
  c->hidden_size = static_cast<int32_t>(hidden);
  c->intermediate_size = static_cast<int32_t>(inter);
  c->vocab_size = static_cast<int32_t>(embed->shape[0]);
  c->rms_norm_eps = static_cast<float>(*eps);
  c->layer_windowed.assign(static_cast<size_t>(layers), 0);
  return Status();
}

Status read_heads(const GgufArchKeys& k, ModelConfig* c) {
  FOVEA_ASSIGN(const int64_t heads, k.same_in_all_layers("attention.head_count", 1, kHeadsMax, std::nullopt));
  FOVEA_ASSIGN(const int64_t kv_heads, k.same_in_all_layers("attention.head_count_kv", 1, kHeadsMax, heads));
  if (heads % kv_heads != 0) return k.h.wrong(k.key("attention.head_count_kv"), "a divisor of " + std::to_string(heads) + " heads");
  FOVEA_ASSIGN(const auto key_length, k.integer("attention.key_length", 1, kWidthMax));
  if (!key_length && c->hidden_size % heads != 0) {
    return k.h.wrong(k.key("embedding_length"), "a multiple of " + std::to_string(heads) + " heads");
  }
  const int64_t dim = key_length.value_or(c->hidden_size / heads);
  FOVEA_TRY(check_head_dim(k.h.where, dim));
  FOVEA_ASSIGN(const auto value_length, k.integer("attention.value_length", 1, kWidthMax));
  if (value_length.value_or(dim) != dim)
    return k.h.unsupported(k.key("attention.value_length"), "the keys' " + std::to_string(dim) + " is");
  FOVEA_ASSIGN(const auto turned, k.integer("rope.dimension_count", 0, kWidthMax));
  if (turned.value_or(dim) != dim) return k.h.unsupported(k.key("rope.dimension_count"), "all " + std::to_string(dim) + " are");
  c->num_heads = static_cast<int32_t>(heads);
  c->num_kv_heads = static_cast<int32_t>(kv_heads);
  c->head_dim = static_cast<int32_t>(dim);
  return Status();
}

Status read_yarn(const GgufArchKeys& k, const ModelConfig& c, RopeConfig* rope) {
  FOVEA_TRY(k.neutral("rope.scaling.yarn_ext_factor", 1));
  const auto longest = static_cast<double>(c.max_position_embeddings);
  FOVEA_ASSIGN(rope->original_max_position, k.number("rope.scaling.original_context_length", 1, kPositionsMax, longest));
  FOVEA_ASSIGN(rope->beta_fast, k.number("rope.scaling.yarn_beta_fast", 1e-6, 1e9, 32));
  FOVEA_ASSIGN(rope->beta_slow, k.number("rope.scaling.yarn_beta_slow", 1e-6, 1e9, 1));
  // A tenth of DeepSeek's mscale_all_dim. Their mscale is the same number, and the ratio of the two is what cos and sin are scaled by.
  FOVEA_ASSIGN(const double log_multiplier, k.number("rope.scaling.yarn_log_multiplier", 0, 1e6, 0));
  rope->mscale_all_dim = 10 * log_multiplier;
  const double factor = log_multiplier > 0 ? 1.0 : yarn_mscale(rope->factor, 1);
  FOVEA_ASSIGN(rope->attention_factor, k.number("rope.scaling.yarn_attn_factor", 1e-6, 1e6, factor));
  return Status();
}

Status read_scaling(const GgufArchKeys& k, const ModelConfig& c, RopeConfig* rope) {
  FOVEA_TRY(k.neutral("rope.scale_linear", 1));
  FOVEA_TRY(k.neutral("rope.scaling.attn_factor", 1));
  FOVEA_ASSIGN(const std::string_view type, k.h.text(k.key("rope.scaling.type")));
  if (type.empty() || type == "none") return Status();
  rope->kind = type == "linear" ? RopeKind::linear : RopeKind::yarn;
  if (rope->kind == RopeKind::yarn && type != "yarn") return k.h.unsupported(k.key("rope.scaling.type"), "known: none linear yarn");
  FOVEA_ASSIGN(const auto factor, k.h.number(k.key("rope.scaling.factor"), 1e-6, 1e6));
  if (!factor) return k.h.wrong(k.key("rope.scaling.factor"), "a number");
  rope->factor = *factor;
  return rope->kind == RopeKind::yarn ? read_yarn(k, c, rope) : Status();
}

// The tensor that llama3's scaling is written as: what each frequency is divided by.
Status read_divisors(const GgufSource& source, const ModelConfig& c, RopeConfig* rope) {
  if (source.find("rope_freqs.weight") == nullptr) return Status();
  const int64_t shape[] = {c.rope_dim() / 2};
  FOVEA_ASSIGN(const TensorInfo t, source.get("rope_freqs.weight", shape));
  const std::string at = t.file + ": tensor \"rope_freqs.weight\": ";
  if (t.dtype != DType::f32) return Status::unsupported(at + "type " + t.stored_dtype + " is not supported (F32 is)");
  if (rope->kind != RopeKind::none_scaling) return Status::unsupported(at + "beside rope.scaling.type it is not supported");
  const auto* data = static_cast<const float*>(t.data);
  rope->kind = RopeKind::divided;
  rope->divisors.assign(data, data + shape[0]);
  const bool positive = std::ranges::all_of(rope->divisors, [](float x) { return std::isfinite(x) && x > 0; });
  return positive ? Status() : Status::corrupt(at + "a divisor is not above 0");
}

Status read_rope(const GgufArchKeys& k, const GgufSource& source, ModelConfig* c) {
  FOVEA_ASSIGN(c->rope.theta, k.number("rope.freq_base", kThetaMin, kThetaMax, 10000.0));
  FOVEA_TRY(read_scaling(k, *c, &c->rope));
  return read_divisors(source, *c, &c->rope);
}

Status read_switches(const GgufArchKeys& k, const GgufSource& source, ModelConfig* c) {
  if (!c->deepseek) FOVEA_TRY(k.neutral("expert_count", 0));
  if (!c->deepseek) FOVEA_TRY(k.neutral("expert_used_count", 0));
  FOVEA_TRY(k.neutral("attention.sliding_window", 0));
  FOVEA_ASSIGN(const auto causal, k.h.boolean(k.key("attention.causal")));
  if (!causal.value_or(true)) return k.h.unsupported(k.key("attention.causal"), "true is");
  // No key says which biases there are: the tensors of the first layer do.
  const auto has = [&](const char* name) { return source.find("model.layers.0." + std::string(name)) != nullptr; };
  c->qkv_bias = has("self_attn.q_proj.bias");
  c->o_bias = has("self_attn.o_proj.bias");
  c->mlp_bias = has("mlp.gate_proj.bias");
  c->qk_norm = c->arch == Arch::qwen3;
  c->tie_word_embeddings = source.find("lm_head.weight") == nullptr;
  return Status();
}

Status read_end_tokens(const GgufHeader& h, ModelConfig* c) {
  constexpr int32_t kControl = 3;  // tokenizer.ggml.token_type
  const auto add = [&](int64_t id) {
    const auto end = static_cast<int32_t>(id);
    if (std::ranges::find(c->eos_token_ids, end) == c->eos_token_ids.end()) c->eos_token_ids.push_back(end);
  };
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    FOVEA_ASSIGN(const auto id, h.integer(key, 0, c->vocab_size - 1));
    if (id) add(*id);
  }
  FOVEA_ASSIGN(const auto tokens, h.strings("tokenizer.ggml.tokens"));
  FOVEA_ASSIGN(const auto types, h.integers("tokenizer.ggml.token_type"));
  const size_t count = std::min({tokens.size(), types.size(), static_cast<size_t>(c->vocab_size)});
  for (size_t i = 0; i < count; ++i) {
    if (types[i] != kControl || std::ranges::find(kEndTokens, tokens[i]) == std::end(kEndTokens)) continue;
    add(static_cast<int64_t>(i));
  }
  return Status();
}

Status read_ids(const GgufHeader& h, ModelConfig* c) {
  FOVEA_TRY(read_end_tokens(h, c));
  FOVEA_ASSIGN(const auto bos, h.integer("tokenizer.ggml.bos_token_id", 0, c->vocab_size - 1));
  FOVEA_ASSIGN(const auto pad, h.integer("tokenizer.ggml.padding_token_id", 0, c->vocab_size - 1));
  if (bos) c->bos_token_id = static_cast<int32_t>(*bos);
  if (pad) c->pad_token_id = static_cast<int32_t>(*pad);
  return Status();
}

// What generation_config.json would say.
Status read_sampling(const GgufHeader& h, SamplingDefaults* s) {
  FOVEA_ASSIGN(const auto temperature, h.number("general.sampling.temp", 0.0, 1e6));
  FOVEA_ASSIGN(const auto top_p, h.number("general.sampling.top_p", 1e-6, 1.0));
  FOVEA_ASSIGN(const auto min_p, h.number("general.sampling.min_p", 0.0, 1 - 1e-6));
  FOVEA_ASSIGN(const auto penalty, h.number("general.sampling.penalty_repeat", 1e-6, 1e6));
  FOVEA_ASSIGN(const auto top_k, h.integer("general.sampling.top_k", -1, INT32_MAX));
  const auto as_float = [](std::optional<double> x) { return x ? std::optional<float>(static_cast<float>(*x)) : std::nullopt; };
  s->temperature = as_float(temperature);
  s->top_p = as_float(top_p);
  s->min_p = as_float(min_p);
  s->repetition_penalty = as_float(penalty);
  if (top_k) s->top_k = static_cast<int32_t>(*top_k);
  if (temperature) s->do_sample = *temperature > 0;
  return Status();
}

}  // namespace

Result<ModelConfig> gguf_model_config(const GgufSource& source) {
  const GgufHeader& h = source.header();
  FOVEA_ASSIGN(const GgufArch* arch, find_arch(h));
  const GgufArchKeys keys(h, arch->name);
  FOVEA_TRY(keys.check_known());
  ModelConfig c;
  c.arch = arch->arch;
  c.architecture = arch->architecture;
  FOVEA_TRY(read_sizes(keys, source, &c));
  FOVEA_TRY(c.arch == Arch::deepseek_v3 ? read_gguf_deepseek(keys, source, &c) : read_heads(keys, &c));
  FOVEA_TRY(read_switches(keys, source, &c));
  FOVEA_TRY(read_rope(keys, source, &c));
  if (c.deepseek) c.deepseek->softmax_scale = latent_softmax_scale(c.rope, *c.deepseek);
  FOVEA_TRY(read_ids(h, &c));
  FOVEA_TRY(read_sampling(h, &c.sampling));
  return c;
}

}  // namespace fovea
