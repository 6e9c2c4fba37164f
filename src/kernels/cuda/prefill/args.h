// What every prefill kernel is given, by value.
#pragma once

#include <fovea/kernels/attention.h>

#include <cuda.h>

#include <cstdint>

namespace fovea::cuda::prefill {

// Query rows of one sequence that share a list of the Selection.
struct alignas(16) RowTile {
  int32_t seq = 0;  // row of the page table
  int32_t row = 0;  // first, of q and out
  int32_t rows = 0;
  int32_t list = 0;  // row of the Selection; dense: 0
};

struct PrefillArgs {
  AttentionParams p;              // its `selection` is host memory: kernels read the copy below
  Selection selection;            // Kind::all: dense
  RowTile* tiles = nullptr;       // [grid_tiles]: written by the tile plan, read by attention
  int32_t* tile_count = nullptr;  // [1]
  int32_t* taken = nullptr;       // [1] jobs that thread blocks have taken beyond their first ones, 0 at first: the wgmma path only
  int32_t rows_per_tile = 1;
  int32_t heads_per_tile = 1;
  int32_t tiles_per_group = 1;
  int32_t block_shift = 0;  // log2(block_size)
  // The TMA's view of K and V, [slots, kv_heads, bs, d] read in boxes of box_keys x 64 dims: the wgmma path only.
  int32_t box_keys = 0;
  CUtensorMap k_map, v_map;
};

// A kernel and what its launch needs; every kernel takes one PrefillArgs.
struct PrefillKernel {
  const void* function = nullptr;
  int32_t threads = 0;
  int32_t shared_bytes = 0;  // dynamic
};

}  // namespace fovea::cuda::prefill
