// Floats as blocks of a quantised type: what dequantize.h reads. Scales are fitted for the least squares error of the weights, all
// of them alike: nothing is known of the activations that they will meet.
#pragma once

#include <fovea/kernels/weight.h>

#include <cstdint>

namespace fovea {

// f32, f16, bf16, q8_0, q4_0, q5_0, q4_k, q5_k and q6_k.
bool can_quantize(WeightType type);

// Largest magnitude that quantize() takes for this type: scales are f16, as f16's own elements are.
float quantize_max(WeightType type);

// x: [count], whole blocks of a type that can_quantize, finite and within quantize_max. out: count / block * bytes of a block.
// The same bytes on every machine.
void quantize(WeightType type, const float* x, int64_t count, uint8_t* out);

}  // namespace fovea
