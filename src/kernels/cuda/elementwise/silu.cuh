// silu(gate) * up of one number, the same wherever it is computed.
#pragma once

namespace fovea::cuda {

__device__ inline float silu_mul_one(float gate, float up) { return gate / (1.0f + expf(-gate)) * up; }

}  // namespace fovea::cuda
