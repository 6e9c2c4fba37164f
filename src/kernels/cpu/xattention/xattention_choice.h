// Which blocks a tile of XAttentionParams reads, from the estimate of what each holds.
#pragma once

#include <fovea/kernels/xattention.h>

#include <cstdint>

namespace fovea::cpu {

// Blocks that are chosen whatever their sum: [0, sink) and [diagonal_begin, diagonal_end).
struct ForcedBlocks {
  int32_t sink = 1;
  int32_t diagonal_begin = 0;
  int32_t diagonal_end = 0;
};

// The choice of one query head and block of queries, as XAttentionParams states it, ascending. order: scratch [blocks].
// Returns the count.
int32_t choose_blocks(const float* sums, int32_t blocks, const ForcedBlocks& forced, float threshold, int32_t top_k,
                      uint64_t* order, int32_t* units);

// The blocks that at least half of `heads` lists hold, ascending: votes[u] of them hold block u. Returns the count.
int32_t majority_blocks(const int32_t* votes, int32_t blocks, int32_t heads, int32_t* units);

// Where a tile of XAttentionParams stands.
struct XAttentionPlace {
  int32_t seq = 0;
  int64_t begin = 0;   // position of its first row
  int64_t end = 0;     // after its last row
  int64_t len = 0;     // keys that some row sees: causal, end
  int32_t blocks = 0;  // of these keys
  ForcedBlocks forced;
};
XAttentionPlace place_of_tile(const XAttentionParams& p, int32_t tile);

}  // namespace fovea::cpu
