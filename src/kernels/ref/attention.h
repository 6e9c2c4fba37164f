// Paged attention, scalar: the definition that every other kernel is compared with.
#pragma once

#include <fovea/kernels/attention.h>

namespace fovea::ref {

// See AttentionParams: both layouts, f32, f16, bf16 and fp8 e4m3 (any head_dim that is a multiple of 8), tables per
// head, every Selection with any tokens_per_unit, ALiBi, sliding window, soft cap. Sums in float64; each
// (row, head) on its own. lse is a natural logarithm; a row that sees no key gives out = 0 and lse = -inf.
// Allocates; not for speed.
void paged_attention(const AttentionParams& p);

// max_logits is the partition's lse, and exp_sums 1.
void paged_partitions(const PartitionedAttentionParams& p);
void merge_partitions(const MergePartitionsParams& p);

}  // namespace fovea::ref
