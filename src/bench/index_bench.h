// The DSA indexer's part of `fovea bench ops`.
#pragma once

#include "base/thread_pool.h"
#include "bench/bench.h"

namespace fovea {

// Index dimension 128, float32 keys in random pages of 16, the best 2,048 of o.depth tokens: 512 query rows and one, 4 and 64
// index heads. bandwidth_gb_s: of the read sweep of the same run.
Status bench_index(const OpsBenchOptions& o, ThreadPool& pool, double bandwidth_gb_s, Report* report);

}  // namespace fovea
