// Mixture of experts, scalar: the choice of experts, and their sum.
#pragma once

#include "kernels/ops/linear.h"
#include "kernels/ops/moe.h"

namespace fovea::ref {

// Most groups that experts may divide into.
inline constexpr int32_t kMaxExpertGroups = 64;

// See kernels/ops/moe.h. The logits and the experts' products are summed in float64. moe_experts rounds activations to bf16
// before each product where `numerics` says so.
void moe_route(const MoeRouteParams& p);
void moe_experts(const MoeExpertsParams& p, Numerics numerics = Numerics::f32);

// The choice alone, for one row: logits [experts] -> ids and weights [top_k]. `scores` and `ranks` are scratch of
// [2 * experts] and [experts]. Allocates nothing; the CPU backend uses it as it is.
void choose_experts(const MoeRouteParams& p, const float* logits, float* scores, int32_t* ranks, int32_t* ids,
                    float* weights);

}  // namespace fovea::ref
