// The estimate of sparse prefill on AMX: bf16 tiles, float32 accumulation.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/xattention/xattention_job.h"

namespace fovea::cpu {

inline constexpr int32_t kXAmxLanes = 256;

// Only where cpu_features().amx_bf16 holds. q (scaled) and K (from f16 or f32) are rounded to bf16.
size_t xattention_amx_scratch(int32_t stride, int32_t head_dim);
int64_t xattention_amx_query_floats(int32_t lanes, int64_t depth);
void xattention_amx_pack_queries(const XJob& job);
void xattention_amx_score(const XJob& job, float* scratch);

}  // namespace fovea::cpu
