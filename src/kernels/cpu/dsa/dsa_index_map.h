// Lists of chosen tokens in the spaces of memory (PAGED and RAGGED), as fovea/kernels/indexer.h states them.
#pragma once

#include <fovea/kernels/indexer.h>

namespace fovea::cpu {

void index_transform(const IndexTransformParams& p);
// The same for one row of a choice that is being made: the fused transform, to p.mapped.
void map_chosen_row(const IndexTopkParams& p, int32_t row, const int32_t* positions, int32_t count);

}  // namespace fovea::cpu
