// Selection of blocks by one summary each: scores, then the best.
#pragma once

#include <fovea/kernels/limits.h>
#include <fovea/kernels/select.h>
#include <fovea/status.h>

#include <cstdint>
#include <vector>

#include "base/thread_pool.h"

namespace fovea::cpu {

// Gives what ref::summary_select gives but for scores that differ by float32 rounding alone; the same lists on any number of
// threads.
class SummarySelect {
 public:
  // Sizes the scratch, once. Errors: resource_exhausted.
  Status prepare(const OpsLimits& limits);

  // Within the limits prepared; head_dim a multiple of 16 up to 256. Any number of rows; allocates nothing.
  void run(const SummarySelectParams& p, ThreadPool& pool);

 private:
  struct Pass;  // some rows of a call

  void prepare_queries(const Pass& pass, int64_t task);
  void score(const Pass& pass, int64_t task);
  void keep(const Pass& pass, int64_t task);

  int rows_ = 0;  // of a pass
  int num_heads_ = 0;
  int kv_heads_ = 0;
  int head_dim_ = 0;
  int64_t blocks_ = 0;           // most blocks of a row
  std::vector<float> queries_;   // [rows, num_heads, d]: sums over groups, where they are averaged
  std::vector<uint64_t> codes_;  // [rows, num_heads, words]: of the queries
  std::vector<float> scores_;    // [rows, kv_heads, blocks]
};

}  // namespace fovea::cpu
