// Norm and rope of q and k, the cache write and the hash codes of the keys as written, in one launch
// (KvWriteParams).
#pragma once

#include <fovea/kernels/cache.h>
#include <fovea/kernels/select.h>

#include "kernels/cuda/launch.h"

namespace fovea::cuda {

// head_dim up to 256; with codes, the codec's n is 64, 128 or 256. KV of f32, f16, bf16 or fp8, either
// layout.
void kv_write(const KvWriteParams& p, const Queue& queue);

// The codes that kv_write makes of the same keys, from the cache.
void encode_codes(const EncodeCodesParams& p, cudaStream_t stream);

}  // namespace fovea::cuda
