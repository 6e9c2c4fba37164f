// How decode attention is cut up and launched: pure choices from plain numbers, made before any array is
// looked at.
#pragma once

#include <fovea/kernels/attention.h>
#include <fovea/kernels/limits.h>

#include <array>
#include <cstdint>
#include <string>

namespace fovea::cuda::decode {

inline constexpr int32_t kWarps = 4;  // of a CTA
inline constexpr int32_t kThreads = 32 * kWarps;
inline constexpr int32_t kCtasPerSm = 2;
inline constexpr int32_t kTileKeys = 16;              // a warp's step: the long side of one mma
inline constexpr int32_t kBatchKeys = 2 * kTileKeys;  // keys whose places a warp looks up at once, one a lane

// Path::split: its most rows, and what its scratch holds where nothing was written.
inline constexpr int32_t kSplitRows = 16, kEmptyByte = 0xff;

// Path::cluster: groups of kWarps warps in a thread block, most thread blocks and splits of a list, and results of splits (of a
// head each) that a thread block has room for.
inline constexpr int32_t kTeams = 2, kClusterSizes = 4, kClusterSplits = 32, kClusterParts = 64;

inline constexpr int32_t kKeysMax = 1 << 30;  // of a list

// A list of keys is cut into splits of one size, whole tiles and at least `min_keys`: the least that needs no
// more than `max_splits` of them. A function of the list's own length alone, so a row's bits do not depend on
// its batch.
struct SplitRule {
  int32_t min_keys = 128;   // two tiles for each warp of a CTA: less does not pay for its merge
  int32_t max_splits = 66;  // more take longer to merge than they save

  constexpr int32_t split_keys(int32_t keys) const {
    if (keys <= int64_t{min_keys} * max_splits) return min_keys;
    const int32_t tiles = (keys + kTileKeys - 1) / kTileKeys;
    return (tiles + max_splits - 1) / max_splits * kTileKeys;
  }
  constexpr int32_t splits(int32_t keys) const {  // at least one: it writes the result of an empty list
    const int32_t size = split_keys(keys);
    return keys <= size ? 1 : (keys - 1) / size + 1;
  }
  // Of any list that is no longer.
  constexpr int32_t most_splits(int32_t keys) const { return keys > int64_t{min_keys} * max_splits ? max_splits : splits(keys); }
};

// Bytes that hold the partial results of `rule` for the largest call.
int64_t partial_bytes(const OpsLimits& limits, const SplitRule& rule);

// As many splits as let one long row occupy the device, whose KV heads are walked in parallel too: more would
// only cost merging. Fewer where the partial results would need more than `budget` bytes.
SplitRule choose_splits(const OpsLimits& limits, int64_t budget = int64_t{256} << 20);

enum class Path : uint8_t {
  split,    // of `mma`: few rows, a thread block for each split
  cluster,  // of `mma`: lists of more rows, a cluster of thread blocks for each list
  mma,      // bf16, f16 and fp8 KV in layout hnd: tensor cores
  scalar,   // f32 KV in layout hnd: float32 FMA
  classic,  // layout classic: float32 FMA, scattered reads of V
};

// Which kernel runs a call, and how its heads divide. A list is what selects keys: one for each KV head, or
// one for each query head where the Selection has those. Query heads of a list share each read of K and V,
// `tile_heads` at a time.
struct Shape {
  Path path = Path::mma;
  int32_t dim_class = 256;  // head_dim rounded up to what there is a kernel for
  int32_t tile_heads = 8;   // 8 or 16
  int32_t lists = 1;        // of a row
  int32_t heads_per_list = 1;
  int32_t head_tiles = 1;  // of a list
  int64_t max_items = 1;   // most CTAs that can find work
  int32_t cluster = 1;     // of Path::cluster: CTAs of a list

  std::string describe() const;
};

Shape choose_shape(const AttentionParams& p, int64_t max_len, const SplitRule& rule);

// Whether Path::split, too, has a kernel for what has this shape. It runs where the device holds all items at once.
bool has_split_kernel(const AttentionParams& p, const Shape& shape);

// How many clusters of 1, 2, 4 and 8 CTAs a device holds at once.
using ClusterRoom = std::array<int, kClusterSizes>;

// CTAs of a list in Path::cluster: the most with which the device holds all lists at once. 0: not by this path.
int32_t choose_cluster(const AttentionParams& p, const Shape& shape, const SplitRule& rule, const ClusterRoom& room);

}  // namespace fovea::cuda::decode
