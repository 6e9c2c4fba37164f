// What the kernels of block selection are launched with.
#pragma once

#include <fovea/kernels/select.h>

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/hash_select/config.h"
#include "kernels/cuda/launch.h"

namespace fovea::cuda::hash {

struct SelectArgs {
  HashSelectParams p;
  SelectShape shape;
  int32_t first_row = 0;
  // Null: ranks stay in a cluster. [lists of this pass, pitch]: the better a block, the lower.
  uint32_t* ranks = nullptr;
  int64_t pitch = 0;
  uint32_t* arrived = nullptr;  // [lists of this pass] thread blocks that are done; 0 between launches
};

struct TopkArgs {
  BlockChoice p;
  int32_t first_row = 0;
  uint32_t* ranks = nullptr;  // [rows of this pass, lists, pitch]; overwritten where a list does not fit shared memory
  int64_t pitch = 0;
  bool staged = true;  // a list fits shared memory
};

const void* select_kernel(int32_t words, bool factors);  // void(SelectArgs)
const void* topk_kernel();                               // void(TopkArgs)

void launch_select(SelectArgs args, int32_t rows, const Queue& queue);

}  // namespace fovea::cuda::hash
