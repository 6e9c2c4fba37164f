// For tests: the AMX engine with its tile instructions computed as Intel describes them. Needs AVX-512.
#pragma once

#include "kernels/cpu/attention/prefill_engine.h"

namespace fovea::cpu {

const PrefillEngine* emulated_amx_engine();  // null where the CPU cannot run it

}  // namespace fovea::cpu
