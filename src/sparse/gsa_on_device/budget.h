// How many blocks a row of the GSA family keeps (ALGORITHMS 2, seed 000's _select_blocks, corrected).
#pragma once

#include <fovea/options.h>

#include <cstdint>

namespace fovea {

// k = ceil(budget_tokens / bs) if a token budget is set, else floor(sparse_ratio * nb) with the ratio in units of 1/10000
// (0.28 of 25 is 7, not 6); then min(nb, max(k, min_blocks, windows)): windows count inside k.
// `request_budget_tokens` overrides the options' budget where it is not 0.
int32_t gsa_blocks_kept(const GsaOptions& options, int32_t request_budget_tokens, int64_t num_blocks, int32_t block_size);

}  // namespace fovea
