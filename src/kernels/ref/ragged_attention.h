// Attention over contiguous keys and values, and the merge of two partial results, scalar.
#pragma once

#include <fovea/kernels/attention.h>

namespace fovea::ref {

// See fovea/kernels/attention.h. Sums in float64.
void ragged_attend(const RaggedAttentionParams& p);
void lse_merge(const LseMergeParams& p);

}  // namespace fovea::ref
