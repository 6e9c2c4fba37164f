// The CPU backend: SIMD chosen at run time, AMX where the CPU has it, threads from the engine's pool.
#pragma once

#include "base/thread_pool.h"
#include "kernels/cpu/linear/linear_choice.h"
#include "kernels/ops/ops.h"

#include <memory>

namespace fovea {

class CpuOps : public Ops {
 public:
  // Announces a weight shape [n, k] so that linear() need not prepare it inside a step.
  virtual Status add_linear_shape(int32_t k, int32_t n, WeightType type) = 0;
};

// `pool` outlives the result. Numerics::bf16 on a CPU without 16-bit matrix hardware is refused by the caller's choice:
// see preferred_numerics(). `int8`: where weights are quantised.
std::unique_ptr<CpuOps> make_cpu_ops(ThreadPool& pool, Numerics numerics, cpu::Int8Rows int8 = cpu::Int8Rows::none);

// bf16 where the hardware multiplies it (AMX, AVX-512 bf16), else f32.
Numerics preferred_numerics();

}  // namespace fovea
