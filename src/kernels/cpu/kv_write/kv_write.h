// Norm of q and k per head, rope, cache write and hash codes in one pass over the projections, with SIMD.
#pragma once

#include <fovea/kernels/cache.h>

#include "base/thread_pool.h"

namespace fovea::cpu {

// Equals ref::kv_write bit for bit, on any number of threads. head_dim: a multiple of 16 up to 256. Slots
// that are not -1 are distinct. A token whose slot is -1 writes nothing; one whose code_mapping is -1 writes
// no codes.
void kv_write(const KvWriteParams& p, ThreadPool& pool);

}  // namespace fovea::cpu
