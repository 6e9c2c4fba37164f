// What every kernel of XAttention's estimate is given, by value: a pass of a call.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "kernels/cuda/xattention/config.h"

namespace fovea::cuda::xattention {

// Tiles [first_tile, first_tile + tiles) of a call. Lane l of a KV head is query head l % group of cell l / group, where tile t of
// the pass has the cells t * R to (t + 1) * R of its block of queries (R = block_size / S), rows or none.
//
// Wherever a row of W is an index, it is of [tiles, R, H].

// The tiles of one sequence that a tile of lanes holds (wgmma).
struct alignas(16) LaneRun {
  int32_t seq = -1;   // none: the list of runs ends
  int32_t len = 0;    // keys that some row sees
  int32_t first = 0;  // cell of the first lane
};

// What a lane's queries meet (wgmma): those that exist meet keys [lo, hi) of a cell.
struct alignas(16) LanePlace {
  int32_t seq, cell, lo, hi;
};

struct PassArgs {
  XAttentionParams p;
  int32_t first_tile = 0;
  int32_t tiles = 0;
  int32_t cells = 0;         // R
  int32_t lanes = 0;         // tiles * R * group
  int32_t padded_lanes = 0;  // whole tiles of the product
  int32_t half_steps = 0;    // of the depth; 2 of them in all
  int32_t tile_lanes = 0;    // of the product
  int32_t tile_cells = 0;
  int32_t cell_tiles = 0;  // of a row of W
  int32_t run_slots = 0;   // of a tile of lanes
  // [kv_heads, tiles of lanes, 2 * half_steps, tile_lanes, kStep]: a cell's queries one after the other, the last first; in the
  // math's type. Of 16-bit types the 16-byte chunks of a row are permuted as a Panel's are.
  void* queries = nullptr;
  LanePlace* places = nullptr;  // [lanes]
  LaneRun* runs = nullptr;      // [tiles of lanes, run_slots]
  // Of a row of W and a tile of cells the greatest score, in units of log2 (kNoScore: none) [rows, cell_tiles]; of a row and a
  // block the sum of 2^(score - greatest of its tile) [rows, capacity].
  float* greatest = nullptr;
  float* weights = nullptr;

  __host__ __device__ int32_t group() const { return p.num_heads / p.kv.kv_heads; }
};

struct Kernel {
  const void* function = nullptr;  // void(PassArgs)
  int32_t threads = 0;
  int32_t shared_bytes = 0;  // dynamic
};

struct ScoreEntry {
  Config config;
  bool converts;  // fp8: widened on its way to shared memory
  Kernel kernel;
};

Kernel pack_kernel(DType math);               // grid (cells that fill padded_lanes, kv_heads)
std::span<const ScoreEntry> mma_kernels();    // grid (tiles of cells, tiles of lanes, kv_heads)
std::span<const ScoreEntry> wgmma_kernels();  // a block a multiprocessor
ScoreEntry f32_kernel();                      // as those of tensor cores, of any cache
Kernel choose_kernel();                       // grid (lists of a tile, tiles); without `weights`, by sums that are given

}  // namespace fovea::cuda::xattention
