// What the estimate of one pass is cut into. A lane is a cell of queries and a query head; the lanes of a strip and a KV
// head are numbered cell * group + head of the group, so that all heads of a group share each key.
#pragma once

#include <fovea/kernels/xattention.h>

#include <cstddef>
#include <cstdint>

namespace fovea::cpu {

// Tiles of one sequence that follow each other. Positions and cells are of the sequence.
struct XStrip {
  int32_t seq = 0;
  int32_t row = 0;    // of q, at position begin
  int64_t begin = 0;  // positions of its rows: [begin, end)
  int64_t end = 0;
  int64_t len = 0;   // keys that some row sees
  int32_t cell = 0;  // first
  int32_t cells = 0;
  int32_t first_out = 0;  // place of the first cell among the cells of the pass
};

// Some lanes of a strip, the same for every KV head.
struct XBatch {
  int32_t strip = 0;
  int32_t lane = 0;  // first
  int32_t lanes = 0;
  int64_t q_at = 0;  // of its packed queries among those of a KV head, float32 elements
};

// One task: a batch of one KV head against a range of key blocks.
struct XJob {
  const XAttentionParams* params = nullptr;
  const XStrip* strip = nullptr;
  int32_t kv_head = 0;
  int32_t lane = 0;
  int32_t lanes = 0;
  float* q = nullptr;                      // packed queries of the batch
  int32_t block_begin = 0, block_end = 0;  // block_begin is a multiple of xattention_tile_blocks()
  // Of each row of W, block by block: its greatest score (units of log2; kXNoMax: no cell) and the sum of 2^(score -
  // that). [cells of the pass, H, block_stride]
  float* tops = nullptr;
  float* weights = nullptr;
  int64_t block_stride = 0;
};

inline constexpr float kXNoMax = -3e38f;  // finite, so that differences are not NaN

// What computes the scores: a row of a table.
struct XEngine {
  const char* name;
  int32_t lanes;                                          // most of a batch
  size_t (*scratch)(int32_t stride, int32_t head_dim);    // float32 elements a worker needs; 64-byte aligned
  int64_t (*query_floats)(int32_t lanes, int64_t depth);  // of packed queries, depth = stride * head_dim
  void (*pack_queries)(const XJob&);
  void (*score)(const XJob&, float* scratch);
};

// Cells of a key tile: enough to use each query often, few enough for the cache, whole blocks of any size.
inline int32_t xattention_tile_cells(int32_t stride, int32_t head_dim) {
  constexpr int64_t kTileBytes = int64_t{256} << 10;
  int32_t cells = 32;
  while (cells > 8 && int64_t{cells} * stride * head_dim * 4 > kTileBytes) cells /= 2;
  return cells;
}
inline int32_t xattention_tile_blocks(const XAttentionParams& p) {
  return xattention_tile_cells(p.stride, p.kv.head_dim) / (p.block_size / p.stride);
}

}  // namespace fovea::cpu
