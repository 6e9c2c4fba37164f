// Mixture of experts on the CPU: routing, and the experts' products over gathered rows.
#pragma once

#include <fovea/kernels/limits.h>
#include <fovea/kernels/moe.h>
#include <fovea/status.h>

#include <vector>

#include "base/thread_pool.h"
#include "kernels/cpu/linear/linear.h"

namespace fovea::cpu {

class Moe {
 public:
  // Sizes all scratch; nothing to do where limits.moe is zero. `linear` (prepared for the same limits) multiplies.
  // Error: more experts a token than there are.
  Status prepare(const OpsLimits& limits, int threads);

  // Logits are full-precision products: their bits depend on the row alone, and so does the choice.
  void route(const MoeRouteParams& p, Linear& linear, ThreadPool& pool);
  void experts(const MoeExpertsParams& p, Linear& linear, ThreadPool& pool);

 private:
  struct Worker {
    std::vector<float> scores;   // [2 * experts]
    std::vector<int32_t> ranks;  // [experts]
  };
  void group_rows(const MoeExpertsParams& p);
  void run_expert(const MoeExpertsParams& p, int32_t expert, int32_t begin, int32_t end, Linear& linear, ThreadPool& pool);

  OpsLimits limits_;
  int32_t block_rows_ = 0;     // most rows that an expert multiplies at once
  std::vector<float> logits_;  // [kRouteRows, experts]
  std::vector<Worker> workers_;
  std::vector<int32_t> starts_;   // [experts + 1] into order_
  std::vector<int32_t> order_;    // [T * top_k] places (row * top_k + i), by expert, then ascending
  std::vector<float> x_;          // [block_rows_, hidden] gathered rows, then what the expert makes of them
  std::vector<float> gate_, up_;  // [block_rows_, inter]
};

}  // namespace fovea::cpu
