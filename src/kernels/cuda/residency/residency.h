// fovea/kernels/residency.h on a GPU: the host takes no part, so a captured step finds and fetches what it misses by itself.
#pragma once

#include <fovea/kernels/residency.h>
#include <fovea/status.h>

#include "kernels/cuda/launch.h"

namespace fovea::cuda {

// A thread block a head. Any number of columns, rows and units.
void resolve(const ResolveParams& p, const Queue& queue);
// Pieces of K and V are multiples of 16 bytes, aligned so.
void fetch_extents(const FetchParams& p, const Queue& queue);
void stage_extents(const StageParams& p, const Queue& queue);
// A warp a (layer, head).
void move_columns(const MoveColumnsParams& p, const Queue& queue);

}  // namespace fovea::cuda
