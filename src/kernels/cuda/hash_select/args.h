// What the kernels of block selection are launched with.
#pragma once

#include <fovea/kernels/select.h>

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/hash_select/config.h"

namespace fovea::cuda::hash {

struct SelectArgs {
  HashSelectParams p;
  SelectShape shape;
  int32_t first_row = 0;
  // [lists of this pass, pitch]: the better a block, the lower. Where choosers are apart kNotYet between launches.
  uint32_t* ranks = nullptr;
  int64_t pitch = 0;
  uint32_t* arrived = nullptr;  // [lists of this pass] thread blocks that are done; 0 between launches
  int32_t looks = 0;            // for ranks, of a chooser that is apart
  Fetch fetch[2];               // by those that score beside such choosers
};

struct TopkArgs {
  BlockChoice p;
  int32_t first_row = 0;
  uint32_t* ranks = nullptr;  // [rows of this pass, kv_heads, pitch]; overwritten where heads share a list
  int64_t pitch = 0;
};

const void* select_kernel(int32_t words, bool factors);  // void(SelectArgs)
const void* topk_kernel();                               // void(TopkArgs)

}  // namespace fovea::cuda::hash
