// The softmax mass on each block of a context: one pass over K, no score of a key leaves it.
#pragma once

#include <fovea/kernels/limits.h>
#include <fovea/kernels/select.h>
#include <fovea/status.h>

#include <cstdint>
#include <vector>

#include "base/thread_pool.h"

namespace fovea::cpu {

inline constexpr int kMassHeads = 8;    // query heads that share a load of the keys
inline constexpr int kMassBlock = 256;  // most tokens of a block

// ref::attention_mass within float32 rounding; the same bits on any number of threads.
class AttentionMass {
 public:
  // Sizes the scratch, once. Errors: resource_exhausted.
  Status prepare(const OpsLimits& limits);

  // Within the limits prepared; head_dim a multiple of 16 up to 256. Allocates nothing.
  void run(const AttentionMassParams& p, ThreadPool& pool);

 private:
  void divide(const AttentionMassParams& p, int row, int kv_head, int32_t blocks);

  int num_heads_ = 0;
  int64_t blocks_ = 0;       // most blocks of a row
  std::vector<float> most_;  // [num_heads, blocks] greatest score of each block of one row
  std::vector<float> sum_;   // [num_heads, blocks] sum of exp(score - most)
};

}  // namespace fovea::cpu
