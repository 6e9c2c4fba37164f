// Prefill attention in float32: Highway micro-kernels, chosen at run time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attention/prefill_plan.h"

namespace fovea::cpu {

// Multiples of every target's panel. 128 rows of a lone head (a tile of sparse prefill) fit.
inline constexpr JobLanes kPrefillF32Lanes{.most = 144, .panel = 48, .key_tile = 4};

// float32 elements of scratch that one worker needs; 64-byte aligned.
size_t prefill_f32_scratch(int32_t head_dim);

void prefill_f32(const TileJob& job, float* scratch);

}  // namespace fovea::cpu
