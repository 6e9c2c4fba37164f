// How XAttention's estimate is cut up and launched: pure choices from plain numbers.
//
// A lane is one cell of queries of one query head. Per KV head the lanes of a pass are a matrix of `lanes` rows and S * d columns,
// the cells of keys another, and their product is cut into tiles of `lanes` x `cells`.
#pragma once

#include <fovea/kernels/limits.h>
#include <fovea/kernels/linear.h>
#include <fovea/kernels/xattention.h>

#include <cstdint>
#include <string>

namespace fovea::cuda::xattention {

inline constexpr int32_t kStep = 64;  // elements of the depth that are multiplied at a time

enum class Path : uint8_t {
  wgmma,  // Hopper's tensor cores
  mma,    // tensor cores
  f32,    // float32 throughout
};

struct Config {
  Path path = Path::mma;
  DType math = DType::bf16;  // what q and k are multiplied in
  int32_t lanes = 0;         // of a tile
  int32_t cells = 0;

  bool operator==(const Config&) const = default;
};

Config choose(Numerics numerics, DType kv_dtype, bool hopper);
std::string to_string(const Config& c);

// The depth in steps: either half of a cell's pairs begins one, so that a sum over the first half is there to be taken.
constexpr int32_t half_steps(int32_t stride, int32_t head_dim) { return (stride * head_dim / 2 + kStep - 1) / kStep; }

// Tiles of cells that cover the longest sequence.
inline int32_t cell_tiles(const XAttentionParams& p, const Config& c) {
  return static_cast<int32_t>((int64_t{p.capacity} * (p.block_size / p.stride) + c.cells - 1) / c.cells);
}

// What a pass of a call holds of `tiles` tiles of XAttentionParams.
struct Footprint {
  int64_t lanes = 0;      // of a KV head, whole tiles of the product
  int32_t run_slots = 0;  // of a tile of lanes: its sequences, and where they end
  int64_t query_bytes = 0;
  int64_t place_bytes = 0;  // of lanes and runs
  int64_t greatest_bytes = 0;
  int64_t weight_bytes = 0;
  int64_t plan_bytes() const { return query_bytes + place_bytes; }
  int64_t part_bytes() const { return greatest_bytes + weight_bytes; }
};
// Multiples of 16 bytes.
Footprint footprint(const XAttentionParams& p, const Config& c, int32_t tiles);

inline constexpr int64_t kScratchBytes = int64_t{72} << 20;  // 64 tiles at 128K tokens and S = 16, of 32 query heads and 8 KV heads

struct Scratch {
  int64_t plan_bytes = 0;
  int64_t part_bytes = 0;
};

// Room for one tile of any legal call, and for more of them up to `budget` bytes each.
Scratch choose_scratch(const OpsLimits& limits, Numerics numerics, int64_t budget = kScratchBytes);

// Tiles that a pass takes of a call; at least 1.
int32_t tiles_of_pass(const XAttentionParams& p, const Config& c, const Scratch& scratch);

}  // namespace fovea::cuda::xattention
