#include "sparse/gsa_family/budget.h"

#include <algorithm>
#include <cmath>

namespace fovea {

int32_t gsa_blocks_kept(const GsaOptions& options, int32_t request_budget_tokens, int64_t num_blocks, int32_t block_size) {
  const int64_t budget = request_budget_tokens > 0 ? request_budget_tokens : options.budget_tokens;
  const int64_t ratio_1e4 = std::llround(options.sparse_ratio * 10000.0);
  int64_t k = budget > 0 ? (budget + block_size - 1) / block_size : ratio_1e4 * num_blocks / 10000;
  k = std::max<int64_t>({k, options.min_blocks, int64_t{options.init_window_sz} + options.local_window_sz});
  return static_cast<int32_t>(std::min(k, num_blocks));
}

}  // namespace fovea
