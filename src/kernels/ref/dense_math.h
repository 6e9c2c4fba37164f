// Embedding, rotary angles, RMSNorm, linear layers and SiLU: the scalar reference. Sums are float64: no order of addition
// shows.
#pragma once

#include "kernels/ops/elementwise.h"
#include "kernels/ops/linear.h"

namespace fovea::ref {

void embed(const EmbedParams& p);
void rope_angles(const RopeAnglesParams& p);
void rms_norm(const RmsNormParams& p);
void silu_mul(const SiluMulParams& p);

// Weights are widened exactly. With Numerics::bf16 activations are first rounded to bf16, as the fast paths
// do.
void linear(const LinearParams& p, Numerics numerics = Numerics::f32);

}  // namespace fovea::ref
