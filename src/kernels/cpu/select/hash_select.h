// Selection by hash codes, fused: encode the queries, scan the codes, keep the best blocks. No score matrix
// leaves it.
#pragma once

#include <fovea/status.h>

#include <cstdint>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/ops/limits.h"
#include "kernels/ops/select.h"

namespace fovea::cpu {

// Gives exactly what ref::hash_select gives, on any number of threads.
class HashSelect {
 public:
  // Sizes the scratch, once. Errors: resource_exhausted.
  Status prepare(const OpsLimits& limits, int threads);

  // Within the limits prepared; allocates nothing. Any number of rows: they pass through the scratch in
  // groups.
  void run(const HashSelectParams& p, ThreadPool& pool);

 private:
  struct Pass;  // some rows of a call

  void encode(const Pass& pass, int64_t task);
  void scan(const Pass& pass, int64_t task);
  void keep(const Pass& pass, int64_t task);

  int rows_ = 0;  // rows of a pass
  int num_heads_ = 0;
  int kv_heads_ = 0;
  int64_t blocks_ = 0;  // most blocks of a row
  int64_t distance_stride_ = 0;
  std::vector<uint64_t> queries_;    // [rows, num_heads, words]
  std::vector<uint16_t> distances_;  // [rows, kv_heads, distance_stride]
};

}  // namespace fovea::cpu
