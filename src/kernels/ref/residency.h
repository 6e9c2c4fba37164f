// Oracle of fovea/kernels/residency.h.
#pragma once

#include <fovea/kernels/residency.h>

namespace fovea::ref {

void resolve(const ResolveParams& p);
void fetch_extents(const FetchParams& p);
void stage_extents(const StageParams& p);
void move_columns(const MoveColumnsParams& p);

}  // namespace fovea::ref
