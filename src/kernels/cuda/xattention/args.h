// What every kernel of XAttention's estimate is given, by value: a pass of a call.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "kernels/cuda/xattention/config.h"

namespace fovea::cuda::xattention {

// Tiles [first_tile, first_tile + tiles) of a call. Lane l of a KV head is query head l % group of cell l / group, where tile t of
// the pass has the cells t * R to (t + 1) * R of its block of queries (R = block_size / S), rows or none.
struct PassArgs {
  XAttentionParams p;
  int32_t first_tile = 0;
  int32_t tiles = 0;
  int32_t cells = 0;         // R
  int32_t lanes = 0;         // tiles * R * group
  int32_t padded_lanes = 0;  // whole tiles of the product
  int32_t half_steps = 0;    // of the depth; 2 of them in all
  // [kv_heads, padded_lanes, 2 * half_steps * kStep]: a cell's queries one after the other, the last first; in the math's type.
  void* queries = nullptr;
  // [tiles, R, H, capacity]: of each row of W and block of keys the greatest score, in units of log2 (kNoScore: none), and the sum
  // of 2^(score - greatest).
  float2* parts = nullptr;

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

Kernel pack_kernel(DType math);                     // a block for each lane, grid (padded_lanes, kv_heads)
std::span<const ScoreEntry> tensor_core_kernels();  // grid (tiles of cells, tiles of lanes, kv_heads)
ScoreEntry f32_kernel();                            // likewise, of any cache
Kernel choose_kernel();                             // grid (lists of a tile, tiles)

}  // namespace fovea::cuda::xattention
