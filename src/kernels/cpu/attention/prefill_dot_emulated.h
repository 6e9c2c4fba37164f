// For tests: the engine of dot products with its instruction computed as Intel describes it. Needs AVX-512.
#pragma once

#include "kernels/cpu/attention/prefill_engine.h"

namespace fovea::cpu {

const PrefillEngine* emulated_dot_engine();  // null where the CPU cannot run it

}  // namespace fovea::cpu
