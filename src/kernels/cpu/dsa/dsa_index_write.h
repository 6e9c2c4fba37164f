// Index queries and keys of the DSA indexer: norm, rope, rounding, cache write, on all threads.
#pragma once

#include <fovea/kernels/indexer.h>

#include "base/thread_pool.h"

namespace fovea::cpu {

// Gives what ref::index_write gives, bit for bit.
void index_write(const IndexWriteParams& p, ThreadPool& pool);

}  // namespace fovea::cpu
