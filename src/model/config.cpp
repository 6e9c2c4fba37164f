#include "model/config.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "model/config_deepseek.h"
#include "model/config_fields.h"
#include "model/gguf.h"
#include "model/json_reader.h"
#include "model/quantization.h"

namespace fovea {
namespace {

using nlohmann::json;

constexpr int32_t kHeadDimMin = 64, kHeadDimMax = 256,
                  kHeadDimStep = 16;  // what the attention kernels are built for

struct ArchRow {
  std::string_view architecture;  // config.json: architectures
  std::string_view model_type;
  Arch arch;
  int64_t head_dim_default;  // 0: hidden_size / num_attention_heads
  int64_t max_position_default;
  double eps_default;
  std::optional<int32_t> bos_default, eos_default;  // where the field is absent
};
constexpr ArchRow kArchs[] = {
    {"LlamaForCausalLM", "llama", Arch::llama, 0, 2048, 1e-6, 1, 2},
    {"Qwen2ForCausalLM", "qwen2", Arch::qwen2, 0, 32768, 1e-6, std::nullopt, std::nullopt},
    {"Qwen3ForCausalLM", "qwen3", Arch::qwen3, 128, 32768, 1e-6, std::nullopt, std::nullopt},
    {"DeepseekV2ForCausalLM", "deepseek_v2", Arch::deepseek_v2, 0, 2048, 1e-6, 1, 2},
    {"DeepseekV3ForCausalLM", "deepseek_v3", Arch::deepseek_v3, 0, 4096, 1e-6, 0, 1},
    {"DeepseekV32ForCausalLM", "deepseek_v32", Arch::deepseek_v32, 0, 163840, 1e-6, 0, 1},
    {"GlmMoeDsaForCausalLM", "glm_moe_dsa", Arch::glm_moe_dsa, 0, 202752, 1e-5, 0, 1},
};

std::string known_architectures() {
  std::string out = "known:";
  for (const ArchRow& row : kArchs) out += " " + std::string(row.architecture);
  return out;
}

Result<const ArchRow*> find_arch(const ConfigFields& fields) {
  std::string architecture;
  if (const json* list = fields.find("architectures"); list != nullptr) {
    if (!list->is_array() || list->empty() || !list->front().is_string()) {
      return fields.wrong("architectures", "a list with the architecture's name");
    }
    architecture = list->front().get<std::string>();
  }
  FOVEA_ASSIGN(const std::string model_type, fields.text("model_type"));
  if (architecture.empty() && model_type.empty()) return fields.wrong("architectures", "a list with the architecture's name");
  const ArchRow* by_type = nullptr;
  for (const ArchRow& row : kArchs) {
    if (model_type == row.model_type) by_type = &row;
  }
  if (architecture.empty()) {
    if (by_type == nullptr) return fields.unsupported("model_type", known_architectures());
    return by_type;
  }
  for (const ArchRow& row : kArchs) {
    if (architecture != row.architecture) continue;
    if (by_type != nullptr && by_type != &row) {
      return fields.wrong("model_type", quote_name(row.model_type) + ", as architectures says " + architecture);
    }
    return &row;
  }
  return fields.unsupported("architectures", known_architectures());
}

bool is_deepseek(Arch arch) { return arch >= Arch::deepseek_v2; }

Status read_sizes(const ConfigFields& f, const ArchRow& arch, ModelConfig* c) {
  FOVEA_ASSIGN(const int64_t layers, f.required_integer("num_hidden_layers", 1, kLayersMax));
  FOVEA_ASSIGN(const int64_t hidden, f.required_integer("hidden_size", 1, kWidthMax));
  FOVEA_ASSIGN(const int64_t inter, f.required_integer("intermediate_size", 1, kWidthMax));
  FOVEA_ASSIGN(const int64_t vocab, f.required_integer("vocab_size", 1, kVocabMax));
  FOVEA_ASSIGN(const int64_t heads, f.required_integer("num_attention_heads", 1, kHeadsMax));
  FOVEA_ASSIGN(const auto positions, f.integer("max_position_embeddings", 1, kPositionsMax));
  FOVEA_ASSIGN(const auto eps, f.number("rms_norm_eps", 0.0, 1.0));
  c->num_layers = static_cast<int32_t>(layers);
  c->hidden_size = static_cast<int32_t>(hidden);
  c->intermediate_size = static_cast<int32_t>(inter);
  c->vocab_size = static_cast<int32_t>(vocab);
  c->num_heads = static_cast<int32_t>(heads);
  c->max_position_embeddings = positions.value_or(arch.max_position_default);
  c->rms_norm_eps = static_cast<float>(eps.value_or(arch.eps_default));
  return Status();
}

// Heads of grouped-query attention.
Status read_heads(const ConfigFields& f, const ArchRow& arch, ModelConfig* c) {
  const int64_t heads = c->num_heads, hidden = c->hidden_size;
  FOVEA_ASSIGN(const auto kv_heads, f.integer("num_key_value_heads", 1, kHeadsMax));
  FOVEA_ASSIGN(const auto head_dim, f.integer("head_dim", 1, kWidthMax));
  if (kv_heads && heads % *kv_heads != 0) {
    return f.wrong("num_key_value_heads", "a divisor of num_attention_heads " + std::to_string(heads));
  }
  const int64_t dim = head_dim ? *head_dim : arch.head_dim_default ? arch.head_dim_default : hidden / heads;
  if (!head_dim && !arch.head_dim_default && hidden % heads != 0) {
    return f.wrong("hidden_size", "a multiple of num_attention_heads " + std::to_string(heads) + ", or a head_dim");
  }
  FOVEA_TRY(check_head_dim(f.where(), dim));
  c->num_kv_heads = static_cast<int32_t>(kv_heads.value_or(heads));
  c->head_dim = static_cast<int32_t>(dim);
  return Status();
}

Status read_switches(const ConfigFields& f, ModelConfig* c) {
  FOVEA_ASSIGN(const auto attention_bias, f.boolean("attention_bias"));
  FOVEA_ASSIGN(const auto mlp_bias, f.boolean("mlp_bias"));
  FOVEA_ASSIGN(const auto tied, f.boolean("tie_word_embeddings"));
  FOVEA_ASSIGN(const auto act, f.text("hidden_act"));
  if (!act.empty() && act != "silu" && act != "swish") return f.unsupported("hidden_act", "known: silu");
  if (f.find("quantization_config") != nullptr) {
    FOVEA_ASSIGN(c->quantization, parse_quantization(f));
  }
  // Qwen2 has a fixed layout (q, k and v biased, o not) and no such field; the others say it for all four.
  c->qkv_bias = c->arch == Arch::qwen2 || attention_bias.value_or(false);
  c->o_bias = c->arch != Arch::qwen2 && attention_bias.value_or(false);
  c->mlp_bias = c->arch == Arch::llama && mlp_bias.value_or(false);
  c->qk_norm = c->arch == Arch::qwen3;
  c->tie_word_embeddings = tied.value_or(false);
  FOVEA_ASSIGN(const auto dtype, f.text("dtype"));
  FOVEA_ASSIGN(const auto torch_dtype, f.text("torch_dtype"));
  c->stored_dtype = dtype.empty() ? torch_dtype : dtype;
  return Status();
}

// Qwen2 and Qwen3: use_sliding_window decides whether sliding_window counts; which layers have it is stated
// by layer_types (transformers 5), or is those from max_window_layers up (transformers 4).
Status read_window(const ConfigFields& f, ModelConfig* c) {
  c->layer_windowed.assign(static_cast<size_t>(c->num_layers), 0);
  if (c->arch != Arch::qwen2 && c->arch != Arch::qwen3) return Status();
  FOVEA_ASSIGN(const auto use, f.boolean("use_sliding_window"));
  FOVEA_ASSIGN(const auto window, f.integer("sliding_window", 1, kPositionsMax));
  FOVEA_ASSIGN(const auto first, f.integer("max_window_layers", 0, kPositionsMax));
  const bool windowed = use.value_or(false) && (window || !f.present("sliding_window"));
  const json* types = f.find("layer_types");
  if (types != nullptr && (!types->is_array() || types->size() != c->layer_windowed.size())) {
    return f.wrong("layer_types", "a list of " + std::to_string(c->num_layers) + " strings");
  }
  for (size_t i = 0; i < c->layer_windowed.size(); ++i) {
    bool here = windowed && static_cast<int64_t>(i) >= first.value_or(28);
    if (types != nullptr) {
      const json& type = (*types)[i];
      here = type == "sliding_attention";
      if (!here && type != "full_attention") {
        return Status::unsupported(f.where() + ": layer_types " + json_snippet(type) +
                                   " is not supported (known: full_attention, sliding_attention)");
      }
      if (here && !windowed) return f.wrong("use_sliding_window", "true, as layer_types has sliding_attention");
    }
    c->layer_windowed[i] = here;
    if (here) c->sliding_window = static_cast<int32_t>(window.value_or(4096));
  }
  return Status();
}

Status read_yarn(const ConfigFields& f, double max_position, RopeConfig* rope) {
  FOVEA_ASSIGN(const auto attention_factor, f.number("attention_factor", 0.0, 1e6));
  FOVEA_ASSIGN(const auto mscale, f.number("mscale", 0.0, 1e6));
  FOVEA_ASSIGN(const auto fast, f.number("beta_fast", 0.0, 1e9));
  FOVEA_ASSIGN(const auto slow, f.number("beta_slow", 0.0, 1e9));
  FOVEA_ASSIGN(const auto truncate, f.boolean("truncate"));
  // A factor of null is the ratio of the two lengths (DeepSeek's spelling).
  if (f.find("factor") == nullptr) rope->factor = max_position / rope->original_max_position;
  if (rope->factor <= 0) return f.wrong("factor", "a number above 0");
  rope->beta_fast = fast.value_or(0) != 0 ? *fast : 32.0;  // 0 means the default, as in transformers
  rope->beta_slow = slow.value_or(0) != 0 ? *slow : 1.0;
  rope->truncate = truncate.value_or(true);
  if (attention_factor) {
    rope->attention_factor = *attention_factor;
  } else if (mscale.value_or(0) != 0 && rope->mscale_all_dim != 0) {
    rope->attention_factor = yarn_mscale(rope->factor, *mscale) / yarn_mscale(rope->factor, rope->mscale_all_dim);
  } else {  // as the paper suggests
    rope->attention_factor = yarn_mscale(rope->factor, 1.0);
  }
  return Status();
}

Status read_scaling(const ConfigFields& f, const ConfigFields& top, double max_position, RopeConfig* rope) {
  const char* const kind_field = f.find("rope_type") != nullptr ? "rope_type" : "type";
  FOVEA_ASSIGN(const auto kind, f.text(kind_field));
  FOVEA_ASSIGN(const auto partial, f.number("partial_rotary_factor", 0.0, 1.0));
  if (partial.value_or(1.0) != 1.0) return f.unsupported("partial_rotary_factor", "1 is");
  if (kind.empty() || kind == "default") return Status();
  if (kind == "linear") {
    rope->kind = RopeKind::linear;
  } else if (kind == "llama3") {
    rope->kind = RopeKind::llama3;
  } else if (kind == "yarn") {
    rope->kind = RopeKind::yarn;
  } else {
    return f.unsupported(kind_field, "known: default linear llama3 yarn");
  }
  FOVEA_ASSIGN(const auto factor, f.number("factor", 1e-6, 1e6));
  const bool may_be_null = rope->kind == RopeKind::yarn && f.present("factor");
  if (!factor && !may_be_null) return f.wrong("factor", "a number");
  rope->factor = factor.value_or(1.0);
  FOVEA_ASSIGN(const auto mscale_all, f.number("mscale_all_dim", 0.0, 1e6));
  rope->mscale_all_dim = mscale_all.value_or(0.0);
  if (rope->kind == RopeKind::linear) return Status();
  // A field of the config itself wins over the one beside rope_type, and max_position_embeddings stands in
  // for both.
  FOVEA_ASSIGN(const auto outer, top.number("original_max_position_embeddings", 1, kPositionsMax));
  FOVEA_ASSIGN(const auto inner, f.number("original_max_position_embeddings", 1, kPositionsMax));
  rope->original_max_position = outer.value_or(inner.value_or(max_position));
  if (rope->kind == RopeKind::yarn) return read_yarn(f, max_position, rope);
  FOVEA_ASSIGN(const auto low, f.number("low_freq_factor", 1e-6, 1e6));
  FOVEA_ASSIGN(const auto high, f.number("high_freq_factor", 1e-6, 1e6));
  if (!low) return f.wrong("low_freq_factor", "a number");
  if (!high || *high <= *low) return f.wrong("high_freq_factor", "a number above low_freq_factor");
  rope->low_freq_factor = *low;
  rope->high_freq_factor = *high;
  return Status();
}

Status read_rope(const ConfigFields& f, ModelConfig* c) {
  FOVEA_ASSIGN(const auto partial, f.number("partial_rotary_factor", 0.0, 1.0));
  if (partial.value_or(1.0) != 1.0) return f.unsupported("partial_rotary_factor", "1 is");
  FOVEA_ASSIGN(const auto outer_theta, f.number("rope_theta", kThetaMin, kThetaMax));
  c->rope.theta = outer_theta.value_or(10000.0);
  // transformers 5 writes rope_parameters, 4 wrote rope_scaling; where both stand, rope_scaling wins there as
  // here.
  const auto filled = [&](const char* field) { return f.find(field) != nullptr && !f.find(field)->empty(); };
  const char* const field = filled("rope_scaling") ? "rope_scaling" : "rope_parameters";
  if (!filled(field)) return Status();
  const json& scaling = *f.find(field);
  if (!scaling.is_object()) return f.wrong(field, "an object");
  for (const auto& [key, value] : scaling.items()) {
    if (!value.is_object()) continue;
    return Status::unsupported(f.where() + ": " + field + ": rope parameters for each kind of layer (" + quote_name(key) +
                               ") are not supported");
  }
  const ConfigFields rope(scaling, f.where() + ": " + field);
  FOVEA_ASSIGN(const auto theta, rope.number("rope_theta", kThetaMin, kThetaMax));
  if (theta) c->rope.theta = *theta;
  return read_scaling(rope, f, static_cast<double>(c->max_position_embeddings), &c->rope);
}

Result<std::optional<int32_t>> read_id(const ConfigFields& f, const char* field, int64_t vocab) {
  // Old configs write -1 for "none".
  FOVEA_ASSIGN(const auto id, f.integer(field, -1, vocab - 1));
  if (!id || *id < 0) return std::optional<int32_t>();
  return std::optional<int32_t>(static_cast<int32_t>(*id));
}

Status read_ids(const ConfigFields& f, const ArchRow& arch, ModelConfig* c) {
  FOVEA_ASSIGN(c->eos_token_ids, f.ids("eos_token_id", c->vocab_size - 1));
  FOVEA_ASSIGN(c->bos_token_id, read_id(f, "bos_token_id", c->vocab_size));
  FOVEA_ASSIGN(c->pad_token_id, read_id(f, "pad_token_id", c->vocab_size));
  if (!f.present("eos_token_id") && arch.eos_default && *arch.eos_default < c->vocab_size) {
    c->eos_token_ids.push_back(*arch.eos_default);
  }
  if (!f.present("bos_token_id") && arch.bos_default && *arch.bos_default < c->vocab_size) {
    c->bos_token_id = arch.bos_default;
  }
  return Status();
}

}  // namespace

std::string_view arch_name(Arch arch) {
  for (const ArchRow& row : kArchs) {
    if (row.arch == arch) return row.model_type;
  }
  return "?";
}

double yarn_mscale(double factor, double mscale) { return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0; }

std::string_view rope_kind_name(RopeKind kind) {
  switch (kind) {
    case RopeKind::none_scaling:
      return "default";
    case RopeKind::linear:
      return "linear";
    case RopeKind::llama3:
      return "llama3";
    case RopeKind::yarn:
      return "yarn";
    case RopeKind::divided:
      return "divided";
  }
  return "?";
}

Status check_head_dim(const std::string& where, int64_t dim) {
  if (dim >= kHeadDimMin && dim <= kHeadDimMax && dim % kHeadDimStep == 0) return Status();
  return Status::unsupported(where + ": head_dim " + std::to_string(dim) + " is not supported (multiples of " +
                             std::to_string(kHeadDimStep) + " from " + std::to_string(kHeadDimMin) + " to " +
                             std::to_string(kHeadDimMax) + " are)");
}

Result<ModelConfig> parse_model_config(std::string_view text, const std::string& name) {
  FOVEA_ASSIGN(const json root, parse_json_object(text, name));
  const ConfigFields fields(root, name);
  FOVEA_ASSIGN(const ArchRow* arch, find_arch(fields));
  ModelConfig config;
  config.arch = arch->arch;
  config.architecture = arch->architecture;
  FOVEA_TRY(read_sizes(fields, *arch, &config));
  FOVEA_TRY(read_switches(fields, &config));
  FOVEA_TRY(read_window(fields, &config));
  FOVEA_TRY(read_rope(fields, &config));
  FOVEA_TRY(is_deepseek(config.arch) ? read_deepseek(fields, &config) : read_heads(fields, *arch, &config));
  FOVEA_TRY(read_ids(fields, *arch, &config));
  return config;
}

Status apply_generation_config(std::string_view text, const std::string& name, ModelConfig* config) {
  FOVEA_ASSIGN(const json root, parse_json_object(text, name));
  const ConfigFields f(root, name);
  FOVEA_ASSIGN(std::vector<int32_t> eos, f.ids("eos_token_id", config->vocab_size - 1));
  if (!eos.empty()) config->eos_token_ids = std::move(eos);
  for (const char* field : {"bos_token_id", "pad_token_id"}) {
    FOVEA_ASSIGN(const auto id, read_id(f, field, config->vocab_size));
    if (id) (field[0] == 'b' ? config->bos_token_id : config->pad_token_id) = id;
  }
  const auto as_float = [](std::optional<double> x) { return x ? std::optional<float>(static_cast<float>(*x)) : std::nullopt; };
  SamplingDefaults& s = config->sampling;
  FOVEA_ASSIGN(s.do_sample, f.boolean("do_sample"));
  FOVEA_ASSIGN(const auto temperature, f.number("temperature", 0.0, 1e6));
  // What no request could have is refused here, where the file has a name: top_p is above 0, min_p below 1, as floats.
  FOVEA_ASSIGN(const auto top_p, f.number("top_p", 1e-6, 1.0));
  FOVEA_ASSIGN(const auto min_p, f.number("min_p", 0.0, 1 - 1e-6));
  FOVEA_ASSIGN(const auto penalty, f.number("repetition_penalty", 1e-6, 1e6));
  FOVEA_ASSIGN(const auto top_k, f.integer("top_k", -1, std::numeric_limits<int32_t>::max()));
  s.temperature = as_float(temperature);
  s.top_p = as_float(top_p);
  s.min_p = as_float(min_p);
  s.repetition_penalty = as_float(penalty);
  if (top_k) s.top_k = static_cast<int32_t>(*top_k);
  return Status();
}

Result<ModelConfig> load_model_config(const std::string& model) {
  if (is_gguf(model)) {
    FOVEA_ASSIGN(const std::unique_ptr<GgufSource> source, GgufSource::open(model));
    return gguf_model_config(*source);
  }
  const std::string path = model + "/config.json";
  FOVEA_ASSIGN(const std::string text, read_file(path));
  FOVEA_ASSIGN(ModelConfig config, parse_model_config(text, path));
  const std::string generation = model + "/generation_config.json";
  if (file_exists(generation)) {
    FOVEA_ASSIGN(const std::string more, read_file(generation));
    FOVEA_TRY(apply_generation_config(more, generation, &config));
  }
  return config;
}

}  // namespace fovea
