// Attention over contiguous float32 keys and values on the CPU, and the merge of partial results.
#pragma once

#include <fovea/kernels/attention.h>
#include <fovea/kernels/limits.h>
#include <fovea/status.h>

#include <cstdlib>
#include <memory>

#include "base/thread_pool.h"

namespace fovea::cpu {

// See RaggedAttentionParams. Vector lanes are query rows of one head; a row's bits depend on its keys alone.
class RaggedAttention {
 public:
  // Sizes all scratch for keys of mla.nope + mla.rope and values of mla.v elements; nothing to do where limits.mla is zero.
  Status prepare(const OpsLimits& limits, int threads);
  void run(const RaggedAttentionParams& p, ThreadPool& pool);

 private:
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  int32_t max_k_ = 0, max_v_ = 0;
  int threads_ = 0;
  size_t worker_floats_ = 0;
  std::unique_ptr<float, Free> scratch_;
};

void lse_merge(const LseMergeParams& p, ThreadPool& pool);

}  // namespace fovea::cpu
