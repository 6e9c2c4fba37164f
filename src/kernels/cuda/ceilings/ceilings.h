// What a GPU can do at best, measured: ceilings for `fovea bench`.
#pragma once

#include <fovea/types.h>

#include "device/stream.h"

#include <cstddef>

namespace fovea::cuda {

// Reads `bytes` (a multiple of 16) of device memory once, every byte used; `sink` is one float of device memory.
void read_sweep(const void* data, size_t bytes, float* sink, Stream& stream);

// Products of tensor cores from shared memory, of bf16 or e4m3 with float32 sums, on all multiprocessors at once: the bare
// instruction, `rounds` times over. Returns their operations; 0 where there is no sm_90a. `sink` as above.
double product_sweep(DType dtype, int rounds, float* sink, Stream& stream);

}  // namespace fovea::cuda
