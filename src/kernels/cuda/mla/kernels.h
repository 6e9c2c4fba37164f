// The kernels of absorbed attention that tensor cores run.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/mla/args.h"

namespace fovea::cuda::mla {

cudaError_t prepare_wgmma();  // once, on a device that runs code for 9.0
// Entries bf16 or f16, on 16-byte vectors; queries and weights are rounded to that. walks_splits: a thread block walks all splits of
// its row, and no merge follows; the bits are the same.
void attend_wgmma(const AttendArgs& a, int32_t rows, bool walks_splits, cudaStream_t stream);

}  // namespace fovea::cuda::mla
