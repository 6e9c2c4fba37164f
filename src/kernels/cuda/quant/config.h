// How the products of few rows with quantised weights are launched: a pure choice from plain numbers.
#pragma once

#include <fovea/kernels/weight.h>

#include <bit>
#include <cstdint>

namespace fovea::cuda::quant {

inline constexpr int kWarps = 8;     // of a team: they share the inputs of a tile
inline constexpr int kOutputs = 16;  // of a tile
inline constexpr int kSlots = 2;     // a warp's pieces of weights on their way or in use
inline constexpr int kColumnsMax = 16;

// Rows of x as the tensor cores take them: bf16 numbers, or three that add up to the float32 one, a column each.
constexpr int parts(bool exact) { return exact ? 3 : 1; }
constexpr int rows_max(bool exact) { return kColumnsMax / parts(exact); }

struct GpuShape {
  int multiprocessors = 1;
  int shared_bytes = 0;        // of a multiprocessor
  int shared_bytes_block = 0;  // a thread block's, at most
};

struct GemvPlan {
  int stage_blocks = 0;  // blocks of a weight row that a warp takes at once: a piece
  int pieces = 0;        // of a row
  int row_stride = 0;    // bytes of a row's piece in shared memory: an odd multiple of 16, so that eight rows fall on all banks
  int slot_bytes = 0;    // a tile's rows, and their scales where those lie apart
  int ring_bytes = 0;    // a warp's slots, and what tells that they are filled
  int x_bytes = 0;       // of x in shared memory; 0: it is read from device memory
  int shared_bytes = 0;  // of a thread block
  int teams = 1;         // of a thread block, of kWarps warps each: they share x
  int thread_blocks = 0;
  int tile_step = 0;  // from a tile of a team to its next
};

// Blocks of a piece, where rows are long enough: the rings of two thread blocks fit a multiprocessor.
constexpr int stage_blocks(int block_bytes, int most_bytes = 288) {
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(most_bytes / block_bytes) | 1u));
}

// From a row's scales in shared memory to the next row's, where they lie apart: those of a piece, at most one a block, and four more,
// so that eight rows fall on all banks.
constexpr int scale_stride(int stage_blocks) { return stage_blocks + 4; }

// gemv.cuh: k a multiple of 32; tiles of kOutputs outputs.
GemvPlan plan_gemv(WeightType type, int k, int columns, int tiles, const GpuShape& gpu);

// dot.cuh, likewise; x_bytes 0: it does not fit. Pieces are whole groups of eight scales, 288 bytes of a
// row at most if that is one.
inline constexpr int kDotRowsMax = 2;
inline constexpr int kTeamsMax = 2;
inline constexpr int kDotTiles = 4;  // whose sums are put together at once
constexpr int dot_stage_blocks(int block_bytes) { return block_bytes < 30 ? 16 : block_bytes < 80 ? 8 : stage_blocks(block_bytes); }
constexpr int dot_slots(int block_bytes) { return dot_stage_blocks(block_bytes) * block_bytes <= 176 ? 3 : 2; }
GemvPlan plan_dot(WeightType type, int k, int rows, int tiles, const GpuShape& gpu);

// bytes_gemv.cu: pieces of a row, of which the last begins early enough to be whole, and warps of a thread block: no more than take
// them in as few turns.
inline constexpr int kBytesColumns = 256;
inline constexpr int kBytesWarpsMax = 12;  // two thread blocks, or three of eight warps, have a multiprocessor's registers
struct BytesPlan {
  int pieces = 0, warps = 0;
};
BytesPlan plan_bytes(int k);

}  // namespace fovea::cuda::quant
