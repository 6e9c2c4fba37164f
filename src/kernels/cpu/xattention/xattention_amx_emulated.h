// For tests: the AMX engine of the estimate with its tile instructions computed as Intel describes them. Needs AVX-512.
#pragma once

#include "kernels/cpu/xattention/xattention_job.h"

namespace fovea::cpu {

const XEngine* emulated_amx_xattention();  // null where the CPU cannot run it

}  // namespace fovea::cpu
