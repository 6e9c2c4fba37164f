// How many blocks a row of the GSA family keeps (UCM's _select_blocks, corrected; docs/algorithms.md).
#pragma once

#include <fovea/options.h>

#include <cstdint>

namespace fovea {

// k = ceil(budget_tokens / bs) if a token budget is set, else floor(sparse_ratio * nb) with the ratio in units of 1/10000
// (0.29 of 100 is 29, not 28); then min(nb, max(k, min_blocks, windows)): windows count inside k.
// `request_budget_tokens` overrides the options' budget where it is not 0.
int32_t gsa_blocks_kept(const GsaOptions& options, int32_t request_budget_tokens, int64_t num_blocks, int32_t block_size);

}  // namespace fovea
