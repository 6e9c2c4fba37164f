// Embedding, RMSNorm and SiLU with SIMD; rotary angles and rotation. A result depends on its own row alone: not on the threads,
// not on the rows beside it, bit for bit. Small inputs stay on the calling thread: a barrier costs more than a decode row.
#pragma once

#include <fovea/kernels/elementwise.h>

#include "base/thread_pool.h"

namespace fovea::cpu {

void embed(const EmbedParams& p, ThreadPool& pool);
void rms_norm(const RmsNormParams& p, ThreadPool& pool);
void silu_mul(const SiluMulParams& p, ThreadPool& pool);
void rope_angles(const RopeAnglesParams& p);

// Rotates x [dim] in place: interleaved pairs (2i, 2i + 1), else (i, i + dim / 2). cos, sin: [dim / 2].
inline void rotate(float* x, int32_t dim, bool interleaved, const float* cos, const float* sin) {
  const int32_t half = dim / 2;
  for (int32_t i = 0; i < half; ++i) {
    float& a = x[interleaved ? 2 * i : i];
    float& b = x[interleaved ? 2 * i + 1 : i + half];
    const float first = a, second = b;
    a = first * cos[i] - second * sin[i];
    b = second * cos[i] + first * sin[i];
  }
}

}  // namespace fovea::cpu
