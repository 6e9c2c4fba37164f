// Sparse prefill against dense prefill of the same rows: what attention over a made choice costs, and what choosing costs.
#pragma once

#include "base/thread_pool.h"
#include "bench/bench.h"

namespace fovea {

// Adds, for heads of 64 and 128 (32 query and 8 KV heads, bf16): dense prefill attention of 512 rows at o.depth; attention
// over lists of 5, 10 and 30 % of the blocks, drawn per tile and query head with sink and diagonal among them; XAttention's
// estimate at strides 16 and 8. All of them in turn; the ratios are of dense.
Status bench_sparse_prefill(const OpsBenchOptions& o, ThreadPool& pool, Report* report);

}  // namespace fovea
