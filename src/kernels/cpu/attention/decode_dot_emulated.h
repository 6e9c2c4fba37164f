// For tests: the decode engine of dot products with its instructions computed as Intel describes them. Needs AVX-512.
#pragma once

#include "kernels/cpu/attention/decode_engine.h"

namespace fovea::cpu {

const DecodeEngine* emulated_decode_dot();  // null where the CPU cannot run it

}  // namespace fovea::cpu
