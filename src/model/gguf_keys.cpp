#include "model/gguf_keys.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <utility>

#include "model/gguf.h"
#include "model/json_reader.h"
#include "model/model_text.h"
#include "model/rope.h"
#include "text/jinja/chat_template.h"
#include "text/tokenizer/vocabulary.h"

namespace fovea {
namespace {

Status check_rope(const ModelConfig& c) {
  const RopeConfig& r = c.rope;
  const bool yarn = r.kind == RopeKind::yarn;
  // Readers take llama3's frequencies from a tensor, which only this architecture has there.
  if (r.kind == RopeKind::llama3 && c.arch != Arch::llama)
    return Status::unsupported("rope llama3 in architecture " + c.architecture);
  if (yarn && r.attention_factor != yarn_mscale(r.factor, 1)) {
    return Status::unsupported("rope yarn with an attention_factor of " + std::to_string(r.attention_factor));
  }
  if (yarn && !r.truncate) return Status::unsupported("rope yarn with truncate false");
  return Status();
}

Status write_rope(const ModelConfig& c, const std::string& arch, GgufWriter* out) {
  FOVEA_TRY(check_rope(c));
  const RopeConfig& r = c.rope;
  out->u32(arch + ".rope.dimension_count", c.head_dim);
  out->f32(arch + ".rope.freq_base", r.theta);
  if (r.kind != RopeKind::linear && r.kind != RopeKind::yarn) return Status();
  out->text(arch + ".rope.scaling.type", rope_kind_name(r.kind));
  out->f32(arch + ".rope.scaling.factor", r.factor);
  if (r.kind == RopeKind::linear) return Status();
  out->u32(arch + ".rope.scaling.original_context_length", static_cast<int64_t>(r.original_max_position));
  out->f32(arch + ".rope.scaling.yarn_beta_fast", r.beta_fast);
  out->f32(arch + ".rope.scaling.yarn_beta_slow", r.beta_slow);
  return Status();
}

Status write_config(const ModelConfig& c, GgufWriter* out) {
  if (std::ranges::count(c.layer_windowed, uint8_t{1}) > 0) return Status::unsupported("layers with a sliding window");
  const std::string arch(arch_name(c.arch));
  const std::pair<const char*, int64_t> sizes[] = {{"vocab_size", c.vocab_size},
                                                   {"context_length", c.max_position_embeddings},
                                                   {"embedding_length", c.hidden_size},
                                                   {"block_count", c.num_layers},
                                                   {"feed_forward_length", c.intermediate_size},
                                                   {"attention.head_count", c.num_heads},
                                                   {"attention.head_count_kv", c.num_kv_heads},
                                                   {"attention.key_length", c.head_dim},
                                                   {"attention.value_length", c.head_dim}};
  for (const auto& [key, value] : sizes) out->u32(arch + "." + key, value);
  out->f32(arch + ".attention.layer_norm_rms_epsilon", c.rms_norm_eps);
  return write_rope(c, arch, out);
}

// Only what a model that samples by default asks for has a meaning there.
void write_sampling(const SamplingDefaults& s, GgufWriter* out) {
  if (!s.do_sample.value_or(false)) return;
  out->f32("general.sampling.temp", s.temperature.value_or(1));
  if (s.top_k) out->number("general.sampling.top_k", *s.top_k);
  if (s.top_p) out->f32("general.sampling.top_p", *s.top_p);
  if (s.min_p) out->f32("general.sampling.min_p", *s.min_p);
  if (s.repetition_penalty) out->f32("general.sampling.penalty_repeat", *s.repetition_penalty);
}

// Rows of the embedding that no token has get names that text never becomes.
Status pad(const ModelConfig& c, VocabularyText* v) {
  const auto rows = static_cast<size_t>(c.vocab_size);
  if (v->tokens.size() > rows) {
    return Status::corrupt("it has " + std::to_string(v->tokens.size()) + " tokens, but vocab_size is " + std::to_string(rows));
  }
  for (size_t i = v->tokens.size(); i < rows; ++i) v->tokens.push_back("[PAD" + std::to_string(i) + "]");
  v->fields.kinds.resize(rows, TokenKind::unused);
  if (!v->fields.scores.empty()) v->fields.scores.resize(rows, v->fields.scores.back());
  return Status();
}

void write_vocabulary(const VocabularyText& v, GgufWriter* out) {
  const bool byte_level = v.fields.model == Vocabulary::Model::byte_level;
  out->text("tokenizer.ggml.model", byte_level ? "gpt2" : "llama");
  out->text("tokenizer.ggml.pre", v.pre);
  out->texts("tokenizer.ggml.tokens", v.tokens);
  std::vector<int32_t> kinds;
  for (const TokenKind k : v.fields.kinds) kinds.push_back(static_cast<int32_t>(k));
  out->numbers("tokenizer.ggml.token_type", kinds);
  if (byte_level) {
    out->texts("tokenizer.ggml.merges", v.merges);
  } else {
    out->numbers("tokenizer.ggml.scores", v.fields.scores);
    out->number("tokenizer.ggml.add_space_prefix", v.fields.space_prefix);
  }
  out->number("tokenizer.ggml.add_bos_token", *v.fields.add_bos);
  out->number("tokenizer.ggml.add_eos_token", *v.fields.add_eos);
}

// bos, eos, unknown and padding as chat templates and the vocabulary say, else the config. Keys take three ends of an answer.
Status write_ids(const ModelConfig& c, const VocabularyText& v, const nlohmann::ordered_json& special, GgufWriter* out) {
  const auto id_of = [&](const char* name) -> std::optional<int32_t> {
    if (!special.contains(name)) return std::nullopt;
    const auto at = std::ranges::find(v.tokens, special[name].get<std::string>());
    return at == v.tokens.end() ? std::nullopt : std::optional(static_cast<int32_t>(at - v.tokens.begin()));
  };
  const auto write = [&](const char* name, std::optional<int32_t> id) {
    if (id) out->u32("tokenizer.ggml." + std::string(name) + "_token_id", *id);
  };
  std::vector<int32_t> ends = c.eos_token_ids;
  std::optional<int32_t> eos = v.fields.eos ? v.fields.eos : id_of("eos_token");
  if (!eos && !ends.empty()) eos = ends[0];
  if (eos) std::erase(ends, *eos);
  if (ends.size() > 2) return Status::unsupported("more than three tokens that end an answer");
  const auto bos = id_of("bos_token"), padding = id_of("pad_token");
  write("bos", v.fields.bos ? v.fields.bos : bos ? bos : c.bos_token_id);
  write("eos", eos);
  if (!ends.empty()) write("eot", ends[0]);
  if (ends.size() > 1) write("eom", ends[1]);
  write("unknown", v.fields.unk ? v.fields.unk : id_of("unk_token"));
  write("padding", padding ? padding : c.pad_token_id);
  return Status();
}

Status write_text(const std::string& dir, const ModelConfig& c, GgufWriter* out) {
  const std::string file = dir + "/tokenizer.json";
  if (!file_exists(file)) {
    out->text("tokenizer.ggml.model", "none");
    return Status();
  }
  FOVEA_ASSIGN(const ModelTokenizer from, load_tokenizer(dir));
  Result<VocabularyText> v = from.tokenizer->vocabulary();
  if (!v.ok()) return v.status().with_context(file);
  if (const Status s = pad(c, &*v); !s.ok()) return s.with_context(file);
  write_vocabulary(*v, out);
  Result<ChatTemplateSource> chat = load_chat_template(dir);
  if (!chat.ok() && chat.status().code() != StatusCode::not_found) return chat.status();
  FOVEA_TRY(write_ids(c, *v, chat.ok() ? chat->special_tokens : nlohmann::ordered_json::object(), out));
  if (!chat.ok()) return Status();
  out->text("tokenizer.chat_template", chat->text);
  if (!chat->tool_use_text.empty()) out->text("tokenizer.chat_template.tool_use", chat->tool_use_text);
  return Status();
}

}  // namespace

Status write_gguf_keys(const std::string& dir, const ModelConfig& config, GgufWriter* out) {
  out->text("general.architecture", arch_name(config.arch));
  out->text("general.type", "model");
  const std::filesystem::path path = std::filesystem::absolute(dir).lexically_normal();
  out->text("general.name", (path.has_filename() ? path : path.parent_path()).filename().string());
  if (const Status s = write_config(config, out); !s.ok()) {
    return Status(s.code(), dir + ": no GGUF file that others read can say this: " + s.message());
  }
  write_sampling(config.sampling, out);
  return write_text(dir, config, out);
}

void copy_gguf_keys(const GgufHeader& from, GgufWriter* out) {
  constexpr std::string_view kOfData[] = {"general.alignment", "general.file_type", "general.quantization_version"};
  for (const auto& [key, value] : from.metadata) {
    if (key.starts_with("split.") || std::ranges::find(kOfData, key) != std::end(kOfData)) continue;
    out->value(key, value);
  }
}

std::vector<float> gguf_rope_divisors(const ModelConfig& config) {
  RopeConfig plain = config.rope;
  if (plain.kind == RopeKind::divided) return plain.divisors;
  if (plain.kind != RopeKind::llama3) return {};
  plain.kind = RopeKind::none_scaling;
  std::vector<float> out = rope_inv_freq(plain, config.head_dim);
  const std::vector<float> scaled = rope_inv_freq(config.rope, config.head_dim);
  std::ranges::transform(out, scaled, out.begin(), std::divides<>());
  return out;
}

}  // namespace fovea
