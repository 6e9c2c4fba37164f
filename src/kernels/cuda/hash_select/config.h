// How block selection by hash codes is launched: pure choices from plain numbers.
#pragma once

#include <fovea/kernels/limits.h>
#include <fovea/kernels/select.h>

#include <cstdint>
#include <string>

namespace fovea::cuda::hash {

inline constexpr int kSelectThreads = 1024;  // at most
inline constexpr int kTileBlocks = 16;   // of a list, scored together by a warp
inline constexpr int kTileTokens = 16;   // of each of them, at most
inline constexpr int kTilesAhead = 2;    // of a warp: their codes are under way
inline constexpr int kQueriesMax = 256;  // query heads of a KV head
inline constexpr int kClusterMost = 8;   // thread blocks; every GPU with clusters has room for these
inline constexpr int kClusterWide = 16;  // where a GPU has room for them all at once
inline constexpr int64_t kChooserBytes = 17 << 10;

// Ranks of one call's rows, in scratch: [rows, kv_heads, blocks] of 32 bits.
struct Scratch {
  int64_t blocks = 0;  // of the longest row
  int32_t rows = 0;    // held at once: a call of more rows runs in several passes
  int64_t bytes(int32_t kv_heads) const { return rows * kv_heads * blocks * int64_t{sizeof(uint32_t)}; }
};

Scratch choose_scratch(const OpsLimits& limits, int64_t budget = int64_t{64} << 20);

// What a launch may count on.
struct SelectDevice {
  bool clusters = false;
  int32_t wide_clusters = 0;  // of kClusterWide thread blocks, that run at once
  int32_t multiprocessors = 108;
  int32_t shared_bytes = 160 << 10;  // of a thread block
};

// `parts` thread blocks score a list's blocks, 8 or 16 tokens of 16 blocks a warp at a time, and one of them chooses.
struct SelectShape {
  int32_t words = 2;  // of a code: 1 to 4
  bool factors = false;
  int32_t list_heads = 1;   // KV heads that share a list
  int32_t queries = 1;      // of a KV head
  int32_t products = 1;     // that take four of them each
  int32_t chunk_shift = 3;  // log2 of 16-byte chunks of a word in a block's piece, which is 8 or 16 tokens
  int32_t pieces = 1;       // of a block
  int32_t parts = 8;
  int32_t threads = 512;
  bool cluster = true;  // the parts of a list are one, which keeps its ranks

  // Shared memory: slices of queries, then what goes with each, the warps' tiles, and the list's ranks (0: they stay in scratch).
  // The choice takes the place of all but the ranks.
  int32_t heads_at = 0, ring_at = 0, tile_bytes = 0, ranks_at = 0, shared_bytes = 0;

  std::string describe() const;
};

SelectShape choose_select(const HashSelectParams& p, const SelectDevice& device);

// With so many parts and threads (fewer where shared memory is short).
SelectShape shape_select(const HashSelectParams& p, const SelectDevice& device, int32_t parts, int32_t threads, bool cluster);

// Bytes of the longest list's ranks, and whether a cluster keeps them.
int64_t list_bytes(int64_t max_len, int32_t block_size);
bool fits_cluster(int64_t list_bytes, const SelectDevice& device);

}  // namespace fovea::cuda::hash
