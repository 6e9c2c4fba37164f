// Embedding, rotary angles, RMSNorm, linear layers and SiLU: the scalar reference. Sums are float64: no order of addition
// shows.
#pragma once

#include <fovea/kernels/elementwise.h>
#include <fovea/kernels/linear.h>

namespace fovea::ref {

// RMSNorm of x [dim], in place.
void norm(float* x, const float* weight, int dim, float eps);
// Rotates x [dim] in place: pairs (2i, 2i + 1) if interleaved, else (i, i + dim / 2). cos, sin: [dim / 2].
void rope(float* x, int dim, bool interleaved, const float* cos, const float* sin);

void embed(const EmbedParams& p);
void rope_angles(const RopeAnglesParams& p);
void rms_norm(const RmsNormParams& p);
void silu_mul(const SiluMulParams& p);

// Weights are widened exactly. With Numerics::bf16 activations are first rounded to bf16, as the fast paths
// do.
void linear(const LinearParams& p, Numerics numerics = Numerics::f32);

}  // namespace fovea::ref
