// The estimate of sparse prefill in float32: Highway, chosen at run time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/xattention/xattention_job.h"

namespace fovea::cpu {

inline constexpr int32_t kXF32Lanes = 192;  // a multiple of every target's panel

size_t xattention_f32_scratch(int32_t stride, int32_t head_dim);
int64_t xattention_f32_query_floats(int32_t lanes, int64_t depth);
void xattention_f32_pack_queries(const XJob& job);
void xattention_f32_score(const XJob& job, float* scratch);

}  // namespace fovea::cpu
