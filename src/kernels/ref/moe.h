// Mixture of experts, scalar: the choice of experts, and their sum.
#pragma once

#include <fovea/kernels/linear.h>
#include <fovea/kernels/moe.h>

namespace fovea::ref {

// See fovea/kernels/moe.h. The logits and the experts' products are summed in float64. moe_experts rounds activations to bf16
// before each product where `numerics` says so.
void moe_route(const MoeRouteParams& p);
void moe_experts(const MoeExpertsParams& p, Numerics numerics = Numerics::f32);

}  // namespace fovea::ref
