// Rotary position embedding (Su et al., 2021), half-split form: dimension i turns with dimension i + head_dim
// / 2 by the angle position * inv_freq[i]. Frequencies follow transformers' modeling_rope_utils (default,
// linear, llama3, yarn) operation by operation in float32: at position 100,000 one bit of a frequency is
// already 0.01 of an angle.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/config.h"

namespace fovea {

// [head_dim / 2], radians per token. head_dim is even.
std::vector<float> rope_inv_freq(const RopeConfig& rope, int head_dim);

// What cos and sin are multiplied by (yarn; 1 otherwise).
float rope_attention_scaling(const RopeConfig& rope);

// cos and sin of one position, each [inv_freq.size()]; the angle is rounded to float32 before, as
// transformers does. A head x turns into: y[i] = x[i] cos[i] - x[i + n] sin[i], y[i + n] = x[i + n] cos[i] +
// x[i] sin[i], n = size.
void rope_cos_sin(std::span<const float> inv_freq, float scaling, int64_t position, float* cos, float* sin);

}  // namespace fovea
