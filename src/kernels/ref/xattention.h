// XAttention's estimate, scalar: the two unfused operations of its published kernels over contiguous arrays, the choice
// by threshold, and all of it over a paged cache as fovea/kernels/xattention.h states it. See docs/xattention.md.
#pragma once

#include <fovea/kernels/xattention.h>
#include <fovea/status.h>

#include <cstdint>
#include <vector>

namespace fovea::ref {

// Query or key vectors, contiguous.
struct HeadArray {
  const float* data = nullptr;  // [batch, heads, len, dim]
  int32_t batch = 1;
  int32_t heads = 1;
  int32_t len = 0;
  int32_t dim = 0;
};

// Scores of cells, or sums of blocks.
struct CellArray {
  int32_t batch = 1;
  int32_t heads = 1;
  int32_t rows = 0;
  int32_t cols = 0;
  std::vector<float> data;  // [batch, heads, rows, cols]

  float* row(int32_t b, int32_t h, int32_t r) { return data.data() + ((int64_t{b} * heads + h) * rows + r) * cols; }
  const float* row(int32_t b, int32_t h, int32_t r) const { return data.data() + ((int64_t{b} * heads + h) * rows + r) * cols; }
};

// A[i, j] = sum over s of query[i S + S - 1 - s] . key[j S + s], unscaled: [batch, heads, ceil(q_len / S), ceil(kv_len /
// S)]. Row 0 of the query is the first token of cell chunk_start, and chunk_end = chunk_start + ceil(q_len / S). Pairs
// beyond either length do not count, nor (causal) those whose key is after its query; a cell without a pair is -inf.
// key.heads divides query.heads.
// Errors: invalid_argument naming the parameter and its value.
Result<CellArray> flat_group_gemm_fuse_reshape(const HeadArray& query, const HeadArray& key, int32_t stride, int32_t chunk_start,
                                               int32_t chunk_end, bool is_causal = true);

// sum over blocks of R x R cells of softmax(A * scale), exp2 for exp: [batch, heads, ceil(rows / R), ceil(cols / R)],
// R = reshaped_block_size. Row r is cell chunk_start + r: causal, it sees the columns up to its own index; at real_q_len
// and beyond it is padding, and adds nothing. The softmax runs over segments of segment_size columns, which changes no
// more than rounding.
// Errors: invalid_argument naming the parameter and its value, segment_size < reshaped_block_size among them.
Result<CellArray> softmax_fuse_block_sum(const CellArray& attn_weights_slice, int32_t reshaped_block_size, int32_t segment_size,
                                         int32_t chunk_start, int32_t chunk_end, int32_t real_q_len, float scale,
                                         bool is_causal = true);

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
