// What stands for a block when blocks are chosen, scalar: fovea/kernels/select.h states each operation. They allocate; not for
// speed.
#pragma once

#include <fovea/kernels/select.h>

namespace fovea::ref {

void block_summaries(const BlockSummariesParams& p);
void encode_codes(const EncodeCodesParams& p);
void summary_select(const SummarySelectParams& p);
void attention_mass(const AttentionMassParams& p);
void block_topk(const BlockTopkParams& p);

}  // namespace fovea::ref
