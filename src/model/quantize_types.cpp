#include "model/quantize_types.h"

#include <cstdlib>

namespace fovea {
namespace {

// The first and the last eighth of the layers, and every third between.
bool is_finer_layer(int64_t layer, int64_t layers) {
  const int64_t eighth = layers / 8;
  return layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2;
}

// Llama's and Qwen2's models of 70B and 72B: values of few heads, which cost little.
bool has_few_values(const ModelConfig& c) { return c.arch != Arch::qwen3 && c.num_layers == 80 && c.num_kv_heads != c.num_heads; }

}  // namespace

WeightType wanted_type(const GgufFileType& kind, const ModelConfig& config, const ListedWeight& matrix) {
  if (is_plain(kind.type)) return kind.type;
  const bool is_output = matrix.name == "lm_head.weight" || (matrix.role == WeightRole::embedding && config.tie_word_embeddings);
  if (is_output) {
    const bool whole = matrix.cols % weight_format(kind.type).block == 0;
    return kind.type == WeightType::q8_0 || !whole ? WeightType::q8_0 : WeightType::q6_k;
  }
  const bool values = matrix.name.ends_with(".v_proj.weight"), down = matrix.name.ends_with(".down_proj.weight");
  if (kind.type != WeightType::q4_k || !(values || down)) return kind.type;
  constexpr std::string_view kLayers = "model.layers.";
  if (is_finer_layer(std::atoll(matrix.name.c_str() + kLayers.size()), config.num_layers)) return WeightType::q6_k;
  return values && has_few_values(config) ? WeightType::q5_k : kind.type;
}

WeightType type_for_rows(WeightType type, int64_t cols) {
  const auto fits = [&](WeightType t) { return cols % weight_format(t).block == 0; };
  if (fits(type)) return type;
  const WeightType smaller = type == WeightType::q4_k           ? WeightType::q5_0
                             : weight_format(type).block == 256 ? WeightType::q8_0
                                                                : type;
  return fits(smaller) ? smaller : WeightType::f16;
}

}  // namespace fovea
