// Prefill attention on the CPU: tiles of query rows over paged K and V, online softmax.
#pragma once

#include <fovea/kernels/attention.h>
#include <fovea/kernels/limits.h>
#include <fovea/kernels/linear.h>
#include <fovea/status.h>

#include <memory>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/cpu/attention/prefill_engine.h"

namespace fovea::cpu {

// Three engines: float32 (Highway), and where the numerics are bf16 and the CPU has them, AMX tiles or AVX-512's dot products. In
// all a row's result depends on the row and its keys alone: not on its tile, chunk, batch or the number of threads,
// bit for bit. Reads of K and V: only blocks that hold a key some row of the call sees. See
// docs/attention-prefill.md.
class PrefillAttention {
 public:
  // Sizes all scratch. Errors: invalid_argument for limits out of range, resource_exhausted where memory
  // lacks.
  Status prepare(const OpsLimits& limits, int threads, Numerics numerics) {
    return prepare(limits, threads, choose_prefill_engine(numerics));
  }
  Status prepare(const OpsLimits& limits, int threads, const PrefillEngine& engine);

  // pool.size() must be at most `threads`. Allocates nothing.
  void run(const AttentionParams& p, ThreadPool& pool);

 private:
  struct Free {
    void operator()(float* p) const;
  };
  OpsLimits limits_;
  int threads_ = 0;
  PrefillEngine engine_{};
  size_t worker_floats_ = 0;
  std::vector<RowTile> tiles_;              // [max_rows]
  std::unique_ptr<float[], Free> scratch_;  // [threads, worker_floats_], 64-byte aligned
};

}  // namespace fovea::cpu
