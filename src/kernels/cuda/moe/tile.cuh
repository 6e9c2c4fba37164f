// What the grouped products share.
#pragma once

#include "kernels/cuda/moe/args.h"

namespace fovea::cuda::moe {

// The places of a tile, to shared memory; how many there are. A barrier must follow.
__device__ inline int load_places(const Groups& g, int tile, int32_t (&places)[kTileRows]) {
  const int begin = g.begin[tile], rows = g.end[tile] - begin;
  for (int i = threadIdx.x; i < rows; i += blockDim.x) places[i] = g.order[begin + i];
  return rows;
}

__device__ inline float gated(float gate, float up) { return gate / (1.0f + expf(-gate)) * up; }

}  // namespace fovea::cuda::moe
