// Prefill attention on AVX-512 bf16: dot products of pairs, float32 accumulation and softmax.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attention/prefill_plan.h"

namespace fovea::cpu {

// As the float32 engine's: 128 rows of a lone head (a tile of sparse prefill) fit.
inline constexpr JobLanes kPrefillDotLanes{.most = 288, .panel = 48, .key_tile = 12};

// float32 elements of scratch that one worker needs; 64-byte aligned, zeroed once.
size_t prefill_dot_scratch(int32_t head_dim);

// Only where cpu_features().avx512_bf16 holds. q, K (from f16 or f32) and the weights are rounded to bf16.
void prefill_dot(const TileJob& job, float* scratch);

}  // namespace fovea::cpu
