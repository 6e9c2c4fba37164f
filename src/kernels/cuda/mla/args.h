// What the kernels of absorbed attention are launched with.
#pragma once

#include <fovea/kernels/mla.h>

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/mla/config.h"

namespace fovea::cuda::mla {

struct AttendArgs {
  MlaAttendParams p;  // its kv and selection are host memory, not followed: their copies are below
  KvView kv;
  Selection selection;    // Kind::all where there is none
  int32_t first_row = 0;  // of this launch
  SplitRule rule;
  // Of a (row of this launch, head, split) where a row has several: unnormalised sums, and the greatest score, in log2 units, with
  // the sum of the weights relative to it.
  int32_t splits = 1;         // most of a row
  float* sums = nullptr;      // [rows, H, splits, latent]
  float2* softmax = nullptr;  // [rows, H, splits]
};

}  // namespace fovea::cuda::mla
