// XAttention's estimate, scalar: the two unfused operations of its published kernels over contiguous arrays, the choice
// by threshold, and all of it over a paged cache as fovea/kernels/xattention.h states it. See docs/xattention.md.
#pragma once

#include <fovea/kernels/xattention.h>

#include <cstdint>
#include <vector>

namespace fovea::ref {

void flat_group_gemm_fuse_reshape(const FlatGroupGemmParams& p);
void softmax_fuse_block_sum(const SoftmaxBlockSumParams& p);

// Blocks that are chosen whatever their sum: [0, sink) and [diagonal_begin, diagonal_end).
struct ForcedBlocks {
  int32_t sink = 1;
  int32_t diagonal_begin = 0;
  int32_t diagonal_end = 0;
};

// The choice of one query head and block of queries, as XAttentionParams states it, ascending. sums: [blocks].
std::vector<int32_t> choose_blocks(const float* sums, int32_t blocks, const ForcedBlocks& forced, float threshold,
                                   int32_t top_k = 0);

// The blocks that at least half of the lists hold, ascending.
std::vector<int32_t> majority_blocks(const std::vector<std::vector<int32_t>>& lists, int32_t blocks);

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

void xattention_select(const XAttentionParams& p);
void xattention_choose(const XAttentionChoiceParams& p);

}  // namespace fovea::ref
