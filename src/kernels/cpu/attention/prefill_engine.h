// What runs the jobs of a prefill call: a row of a table, so that tests can put in another.
#pragma once

#include <fovea/kernels/linear.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attention/prefill_plan.h"

namespace fovea::cpu {

struct PrefillEngine {
  const char* name;
  JobLanes lanes;
  size_t (*scratch)(int32_t head_dim);  // float32 elements a worker needs; 64-byte aligned, zeroed once
  void (*run)(const TileJob&, float* scratch);
};

// Where the numerics are bf16, AMX or else AVX-512 bf16 if the CPU has it; else float32.
const PrefillEngine& choose_prefill_engine(Numerics numerics);

}  // namespace fovea::cpu
