// What runs the tasks of a decode call: a row of a table, so that tests can put in another.
#pragma once

#include <fovea/kernels/linear.h>

#include "kernels/cpu/attention/decode_inner.h"

namespace fovea::cpu {

struct DecodeEngine {
  const char* name;
  void (*attend)(const DecodeTask&, DecodeScratch&);
};

// Where the numerics are bf16 and the CPU has AVX-512 bf16 at twice the rate of multiply-adds, dot products over a bf16 cache; else
// float32. On Intel's cores with AMX they do half the work of multiply-adds (docs/attention-prefill.md): those are left out.
const DecodeEngine& choose_decode_engine(Numerics numerics);

// By dot products, only where cpu_features().avx512_bf16 holds: q and the weights are rounded to bf16. A cache of another dtype as
// attend_task().
void attend_task_dot(const DecodeTask& task, DecodeScratch& scratch);

}  // namespace fovea::cpu
