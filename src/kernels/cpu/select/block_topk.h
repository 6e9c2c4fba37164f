// The best blocks by scores in float32.
#pragma once

#include <fovea/kernels/limits.h>
#include <fovea/kernels/select.h>
#include <fovea/status.h>

#include <cstdint>
#include <vector>

#include "base/thread_pool.h"

namespace fovea::cpu {

// The `keep` (1 to count) greatest of scores[0..count), NaN counting as -inf, ties to the lower index, ascending: units[i] =
// first + index. O(count).
void float_topk(const float* scores, int32_t count, int32_t keep, int32_t first, int32_t* units);

// Gives exactly what ref::block_topk gives, on any number of threads.
class BlockTopk {
 public:
  // Sizes the scratch, once.
  void prepare(const OpsLimits& limits, int threads);

  // Within the limits prepared; allocates nothing.
  void run(const BlockTopkParams& p, ThreadPool& pool);

 private:
  int64_t blocks_ = 0;      // most blocks of a row
  std::vector<float> sum_;  // [threads, blocks]: of the heads that share a list
};

}  // namespace fovea::cpu
