// Prefill attention on AMX: bf16 tiles, float32 accumulation and softmax.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attention/prefill_plan.h"

namespace fovea::cpu {

// All lanes of a job share the transposing of V, which costs a tenth of the tile products at 256.
inline constexpr JobLanes kPrefillAmxLanes{.most = 256, .panel = 32, .key_tile = 24};

// float32 elements of scratch that one worker needs; 64-byte aligned, zeroed once.
size_t prefill_amx_scratch(int32_t head_dim);

// Only where cpu_features().amx_bf16 holds. q, K (from f16 or f32) and the weights are rounded to bf16.
void prefill_amx(const TileJob& job, float* scratch);

}  // namespace fovea::cpu
