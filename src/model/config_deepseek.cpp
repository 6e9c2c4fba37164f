#include "model/config_deepseek.h"
#include "model/json_reader.h"

#include <algorithm>
#include <cmath>

namespace fovea {
namespace {

using nlohmann::json;

constexpr int64_t kIndexDimMax = 256;
constexpr int64_t kIndexTopkMax = 1 << 20;

// Where transformers has a default that differs, or a form without a field.
struct Defaults {
  Arch arch;
  int64_t expert_groups, top_groups;
  int64_t dense_layers;  // first_k_dense_replace
  double routed_scaling;
  bool indexer;
  bool index_rope_interleaved;  // transformers knows no field for it
};
constexpr Defaults kDefaults[] = {
    {Arch::deepseek_v2, 1, 1, 0, 1.0, false, false},
    {Arch::deepseek_v3, 8, 4, 3, 2.5, false, false},
    {Arch::deepseek_v32, 8, 4, 3, 2.5, true, false},
    {Arch::glm_moe_dsa, 1, 1, 3, 2.5, true, true},
};

const Defaults& defaults_of(Arch arch) {
  return *std::find_if(std::begin(kDefaults), std::end(kDefaults), [&](const Defaults& d) { return d.arch == arch; });
}

// A width that kernels read in vectors of 16.
Result<int32_t> width(const ConfigFields& f, const char* field, int64_t most) {
  FOVEA_ASSIGN(const int64_t n, f.required_integer(field, 1, most));
  if (n % 16 != 0) return f.unsupported(field, "multiples of 16 are");
  return static_cast<int32_t>(n);
}

Status read_latents(const ConfigFields& f, const ModelConfig& c, DeepseekConfig* d) {
  // Null: queries are made by one matrix. An indexer needs the rank.
  const bool no_rank = f.present("q_lora_rank") && f.find("q_lora_rank") == nullptr && !defaults_of(c.arch).indexer;
  if (!no_rank) {
    FOVEA_ASSIGN(const int64_t q_rank, f.required_integer("q_lora_rank", 1, kWidthMax));
    d->q_lora_rank = static_cast<int32_t>(q_rank);
  }
  FOVEA_ASSIGN(d->kv_lora_rank, width(f, "kv_lora_rank", kLatentMax));
  FOVEA_ASSIGN(d->nope_dim, width(f, "qk_nope_head_dim", kPartDimMax));
  FOVEA_ASSIGN(d->rope_dim, width(f, "qk_rope_head_dim", kRopeDimMax));
  FOVEA_ASSIGN(d->v_dim, width(f, "v_head_dim", kPartDimMax));
  FOVEA_ASSIGN(const auto kv_heads, f.integer("num_key_value_heads", 1, kHeadsMax));
  FOVEA_ASSIGN(const auto interleave, f.boolean("rope_interleave"));
  if (kv_heads && *kv_heads != c.num_heads) {
    return f.wrong("num_key_value_heads",
                   "num_attention_heads " + std::to_string(c.num_heads) + ": the heads of latent attention share no keys");
  }
  d->rope_interleaved = interleave.value_or(true);
  d->softmax_scale = latent_softmax_scale(c.rope, *d);
  return Status();
}

// A list of one of two words a layer, longer lists (the layers of multi-token prediction follow) allowed: 1 where it is `yes`.
Status read_layer_words(const ConfigFields& f, const char* field, std::string_view yes, std::string_view no,
                        std::vector<uint8_t>* out) {
  const json& list = *f.find(field);
  const std::string words = quote_name(yes) + (yes == no ? "" : " or " + quote_name(no));
  if (!list.is_array() || list.size() < out->size()) {
    return f.wrong(field, "a list of " + words + " for each of " + std::to_string(out->size()) + " layers");
  }
  for (size_t i = 0; i < out->size(); ++i) {
    (*out)[i] = list[i] == yes;
    if (list[i] == yes || list[i] == no) continue;
    return Status::unsupported(f.where() + ": " + field + " " + json_snippet(list[i]) + " is not supported (known: " + words + ")");
  }
  return Status();
}

// GLM-5 lets layers share the choice of a layer before them: stated layer by layer, as letters, or as a period.
Status read_sharing(const ConfigFields& f, std::vector<uint8_t>* indexes) {
  if (f.find("indexer_types") != nullptr) return read_layer_words(f, "indexer_types", "full", "shared", indexes);
  if (const json* pattern = f.find("index_topk_pattern"); pattern != nullptr) {
    if (pattern->is_array()) return read_layer_words(f, "index_topk_pattern", "full", "shared", indexes);
    FOVEA_ASSIGN(const std::string letters, f.text("index_topk_pattern"));
    if (letters.size() < indexes->size() || letters.find_first_not_of("FS") != std::string::npos) {
      return f.wrong("index_topk_pattern", "F or S for each of " + std::to_string(indexes->size()) + " layers");
    }
    for (size_t i = 0; i < indexes->size(); ++i) (*indexes)[i] = letters[i] == 'F';
    return Status();
  }
  FOVEA_ASSIGN(const auto stated_period, f.integer("index_topk_freq", 0, INT32_MAX));
  FOVEA_ASSIGN(const auto offset, f.integer("index_skip_topk_offset", INT32_MIN, INT32_MAX));
  const int64_t period = std::max<int64_t>(stated_period.value_or(1), 1);
  for (size_t i = 0; i < indexes->size(); ++i) {
    (*indexes)[i] = std::max<int64_t>(static_cast<int64_t>(i) - offset.value_or(2) + 1, 0) % period == 0;
  }
  return Status();
}

Status read_indexer(const ConfigFields& f, const ModelConfig& c, DeepseekConfig* d) {
  d->layer_indexes.assign(static_cast<size_t>(c.num_layers), defaults_of(c.arch).indexer);
  if (!defaults_of(c.arch).indexer) return Status();
  FOVEA_ASSIGN(const int64_t heads, f.required_integer("index_n_heads", 1, kHeadsMax));
  FOVEA_ASSIGN(d->index_dim, width(f, "index_head_dim", kIndexDimMax));
  FOVEA_ASSIGN(const int64_t topk, f.required_integer("index_topk", 1, kIndexTopkMax));
  FOVEA_ASSIGN(const auto interleave, f.boolean("indexer_rope_interleave"));
  if (d->index_dim < d->rope_dim) {
    return f.wrong("index_head_dim", "at least qk_rope_head_dim " + std::to_string(d->rope_dim));
  }
  d->index_heads = static_cast<int32_t>(heads);
  d->index_topk = static_cast<int32_t>(topk);
  d->index_rope_interleaved = interleave.value_or(defaults_of(c.arch).index_rope_interleaved);
  if (c.arch == Arch::glm_moe_dsa) FOVEA_TRY(read_sharing(f, &d->layer_indexes));
  if (d->layer_indexes[0] == 0) {
    return Status::corrupt(f.where() + ": the first layer shares the choice of an indexer, and there is none before it");
  }
  if (f.find("layer_types") == nullptr) return Status();
  std::vector<uint8_t> sparse(static_cast<size_t>(c.num_layers));
  return read_layer_words(f, "layer_types", "deepseek_sparse_attention", "deepseek_sparse_attention", &sparse);
}

Status read_layers_with_experts(const ConfigFields& f, const ModelConfig& c, DeepseekConfig* d) {
  d->layer_moe.assign(static_cast<size_t>(c.num_layers), 0);
  if (f.find("mlp_layer_types") != nullptr) return read_layer_words(f, "mlp_layer_types", "sparse", "dense", &d->layer_moe);
  FOVEA_ASSIGN(const auto dense, f.integer("first_k_dense_replace", 0, INT32_MAX));
  FOVEA_ASSIGN(const auto period, f.integer("moe_layer_freq", 1, INT32_MAX));
  if (period.value_or(1) != 1) return f.unsupported("moe_layer_freq", "1 is");
  for (int64_t i = dense.value_or(defaults_of(c.arch).dense_layers); i < c.num_layers; ++i)
    d->layer_moe[static_cast<size_t>(i)] = 1;
  return Status();
}

// How V2 chooses: softmax, no biases, groups judged by their best.
Status read_v2_choice(const ConfigFields& f, DeepseekConfig* d) {
  FOVEA_ASSIGN(const auto scoring, f.text("scoring_func"));
  FOVEA_ASSIGN(const auto choice, f.text("topk_method"));
  if (!scoring.empty() && scoring != "softmax") return f.unsupported("scoring_func", "known: softmax");
  if (!choice.empty() && choice != "greedy" && choice != "group_limited_greedy")
    return f.unsupported("topk_method", "known: greedy group_limited_greedy");
  // transformers ignores it; others scale the weights where it is false, and only there.
  FOVEA_ASSIGN(const auto normalize, f.boolean("norm_topk_prob"));
  if (normalize.value_or(false)) return f.unsupported("norm_topk_prob", "false is");
  d->scoring = ExpertScoring::softmax;
  d->router_bias = d->normalize_weights = false;
  d->group_top = 1;
  return Status();
}

Status read_choice(const ConfigFields& f, DeepseekConfig* d) {
  FOVEA_ASSIGN(const auto normalize, f.boolean("norm_topk_prob"));
  FOVEA_ASSIGN(const auto scoring, f.text("scoring_func"));
  FOVEA_ASSIGN(const auto choice, f.text("topk_method"));
  if (!scoring.empty() && scoring != "sigmoid") return f.unsupported("scoring_func", "known: sigmoid");
  if (!choice.empty() && choice != "noaux_tc") return f.unsupported("topk_method", "known: noaux_tc");
  d->normalize_weights = normalize.value_or(true);
  return Status();
}

Status read_router(const ConfigFields& f, const ModelConfig& c, DeepseekConfig* d) {
  const Defaults& defaults = defaults_of(c.arch);
  const bool v2 = c.arch == Arch::deepseek_v2;
  FOVEA_TRY(v2 ? read_v2_choice(f, d) : read_choice(f, d));
  FOVEA_ASSIGN(const int64_t top_k, f.required_integer("num_experts_per_tok", 1, kExpertsMax));
  FOVEA_ASSIGN(const auto groups, f.integer("n_group", 1, kExpertGroupsMax));
  FOVEA_ASSIGN(const auto top_groups, f.integer("topk_group", 1, kExpertGroupsMax));
  FOVEA_ASSIGN(const auto scaling, f.number("routed_scaling_factor", 0.0, 1e6));
  FOVEA_ASSIGN(const auto choice, f.text("topk_method"));
  const bool grouped = !v2 || choice == "group_limited_greedy";
  const int64_t n_group = grouped ? groups.value_or(defaults.expert_groups) : 1;
  const int64_t topk_group = grouped ? top_groups.value_or(defaults.top_groups) : 1;
  if (d->experts % n_group != 0 || d->experts / n_group < d->group_top) {
    return f.wrong("n_group", "a divisor of n_routed_experts " + std::to_string(d->experts) + " that leaves " +
                                  std::to_string(d->group_top) + " or more in a group");
  }
  if (topk_group > n_group) return f.wrong("topk_group", "at most n_group " + std::to_string(n_group));
  if (top_k > topk_group * (d->experts / n_group)) {
    return f.wrong("num_experts_per_tok",
                   "at most the " + std::to_string(topk_group * (d->experts / n_group)) + " experts of topk_group groups");
  }
  d->experts_per_token = static_cast<int32_t>(top_k);
  d->expert_groups = static_cast<int32_t>(n_group);
  d->top_groups = static_cast<int32_t>(topk_group);
  d->routed_scaling = static_cast<float>(scaling.value_or(defaults.routed_scaling));
  return Status();
}

Status read_experts(const ConfigFields& f, const ModelConfig& c, DeepseekConfig* d) {
  FOVEA_TRY(read_layers_with_experts(f, c, d));
  const auto layers = std::count(d->layer_moe.begin(), d->layer_moe.end(), 1);
  if (layers == 0) return Status();
  FOVEA_ASSIGN(const int64_t experts, f.required_integer("n_routed_experts", 1, kExpertsMax));
  if (experts * layers > kExpertsOfAllLayersMax) {
    return f.wrong("n_routed_experts",
                   "at most " + std::to_string(kExpertsOfAllLayersMax) + " over " + std::to_string(layers) + " layers");
  }
  FOVEA_ASSIGN(const int64_t shared, f.required_integer("n_shared_experts", 1, kSharedExpertsMax));
  FOVEA_ASSIGN(const int64_t inter, f.required_integer("moe_intermediate_size", 1, kWidthMax / 64));
  d->experts = static_cast<int32_t>(experts);
  d->shared_experts = static_cast<int32_t>(shared);
  d->moe_intermediate = static_cast<int32_t>(inter);
  return read_router(f, c, d);
}

}  // namespace

float latent_softmax_scale(const RopeConfig& rope, const DeepseekConfig& d) {
  const double mscale = rope.mscale_all_dim == 0 ? 1.0 : yarn_mscale(rope.factor, rope.mscale_all_dim);
  return static_cast<float>(mscale * mscale / std::sqrt(static_cast<double>(d.qk_dim())));
}

Status read_deepseek(const ConfigFields& f, ModelConfig* c) {
  DeepseekConfig d;
  FOVEA_TRY(read_latents(f, *c, &d));
  FOVEA_TRY(read_indexer(f, *c, &d));
  FOVEA_TRY(read_experts(f, *c, &d));
  FOVEA_ASSIGN(const auto mlp_bias, f.boolean("mlp_bias"));
  if (mlp_bias.value_or(false)) return f.unsupported("mlp_bias", "false is");
  c->num_kv_heads = 1;
  c->head_dim = d.latent_dim();
  c->deepseek = std::move(d);
  return Status();
}

}  // namespace fovea
