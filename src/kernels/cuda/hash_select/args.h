// What the kernels of block selection are launched with.
#pragma once

#include <fovea/kernels/select.h>

#include <cstdint>

#include "kernels/cuda/hash_select/config.h"

namespace fovea::cuda::hash {

struct ScanArgs {
  HashSelectParams p;
  ScanShape shape;
  int32_t first_row = 0;
  // [rows of this pass, kv_heads, pitch]: least Hamming distance of a block, u16; of asymmetric codes the rank of its score, u32.
  void* distances = nullptr;
  int64_t pitch = 0;
};

struct TopkArgs {
  HashSelectParams p;
  int32_t first_row = 0;
  void* distances = nullptr;  // as in ScanArgs; overwritten where a list does not fit shared memory
  int64_t pitch = 0;
  bool staged = true;  // a list fits shared memory
};

const void* scan_kernel(const ScanShape& shape, const HashCodec& codec);  // void(ScanArgs)
const void* topk_kernel(bool asymmetric);                                 // void(TopkArgs)

}  // namespace fovea::cuda::hash
