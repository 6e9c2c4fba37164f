// Attention over contiguous keys and values, and the merge of two partial results, scalar.
#pragma once

#include "kernels/ops/attention.h"

namespace fovea::ref {

// See kernels/ops/attention.h. Sums in float64.
void ragged_attend(const RaggedAttentionParams& p);
void lse_merge(const LseMergeParams& p);

}  // namespace fovea::ref
