// The choice of experts for one row, as MoeRouteParams states it.
#pragma once

#include <fovea/kernels/moe.h>

namespace fovea::cpu {

// logits [experts] -> ids and weights [top_k]. Scratch: scores [2 * experts], ranks [experts]. At most 64 groups.
// Allocates nothing.
void choose_experts(const MoeRouteParams& p, const float* logits, float* scores, int32_t* ranks, int32_t* ids, float* weights);

}  // namespace fovea::cpu
