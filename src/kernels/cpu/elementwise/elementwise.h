// Embedding, RMSNorm and SiLU with SIMD. A result depends on its own row alone: not on the threads, not on
// the rows beside it, bit for bit. Small inputs stay on the calling thread: a barrier costs more than a
// decode row.
#pragma once

#include "base/thread_pool.h"
#include "kernels/ops/elementwise.h"

namespace fovea::cpu {

void embed(const EmbedParams& p, ThreadPool& pool);
void rms_norm(const RmsNormParams& p, ThreadPool& pool);
void silu_mul(const SiluMulParams& p, ThreadPool& pool);

}  // namespace fovea::cpu
