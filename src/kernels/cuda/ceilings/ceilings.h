// What a GPU can do at best, measured: ceilings for `fovea bench`.
#pragma once

#include "device/stream.h"

#include <cstddef>

namespace fovea::cuda {

// Reads `bytes` (a multiple of 16) of device memory once, every byte used; `sink` is one float of device memory.
void read_sweep(const void* data, size_t bytes, float* sink, Stream& stream);

}  // namespace fovea::cuda
