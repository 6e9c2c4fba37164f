// Which type each matrix gets in a GGUF file of a kind, as llama.cpp's quantiser chooses.
#pragma once

#include <string_view>

#include <fovea/kernels/weight.h>
#include "model/config.h"
#include "model/weights.h"

namespace fovea {

struct GgufFileType {
  std::string_view name;  // "q4_k_m"
  uint32_t number;        // general.file_type
  WeightType type;        // of most matrices
};
inline constexpr GgufFileType kGgufFileTypes[] = {
    {"q4_k_m", 15, WeightType::q4_k}, {"q4_0", 2, WeightType::q4_0},  {"q6_k", 18, WeightType::q6_k}, {"q8_0", 7, WeightType::q8_0},
    {"f16", 1, WeightType::f16},      {"bf16", 32, WeightType::bf16}, {"f32", 0, WeightType::f32},
};

// What `kind` wants for a matrix of the model, whatever its rows are.
WeightType wanted_type(const GgufFileType& kind, const ModelConfig& config, const ListedWeight& matrix);

// `type`, or what stands in for it where rows of `cols` are no whole blocks.
WeightType type_for_rows(WeightType type, int64_t cols);

}  // namespace fovea
