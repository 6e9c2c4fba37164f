// Rows and ranges of keys as the scoring kernels share them out.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/dsa/args.h"

namespace fovea::cuda::dsa {

// Keys of a row that are scored: none where the row takes all.
__device__ inline int32_t scored_length(const IndexTopkParams& p, int32_t row) {
  const int32_t len = p.row_len[row];
  return len > p.topk ? len : 0;
}

// Neighbouring rows of one sequence.
struct RowRun {
  int32_t first = 0, rows = 0;
  int32_t seq = 0;
  int32_t longest = 0;  // of their scored lengths
};

// Visits the runs of rows [begin, end).
template <typename Visit>
__device__ void for_each_run(const IndexTopkParams& p, int32_t begin, int32_t end, const Visit& visit) {
  while (begin < end) {
    RowRun run{begin, 0, p.row_seq[begin], 0};
    for (; begin < end && p.row_seq[begin] == run.seq; ++begin, ++run.rows) run.longest = max(run.longest, scored_length(p, begin));
    visit(run);
  }
}

// Tiles of keys [begin, end).
struct KeyRange {
  int32_t begin = 0, end = 0;
};
__device__ inline KeyRange key_range(int32_t len, int32_t tile_keys, int32_t split, int32_t splits) {
  const int64_t tiles = (static_cast<int64_t>(len) + tile_keys - 1) / tile_keys;
  return {static_cast<int32_t>(tiles * split / splits), static_cast<int32_t>(tiles * (split + 1) / splits)};
}

__device__ inline int32_t list_of(const ScoreArgs& a, int32_t row) {
  return (row - a.first_row) * a.pass.splits + static_cast<int32_t>(blockIdx.y);
}

// What a cut may leave beyond topk: it saves the cut a look, and costs little room.
__device__ inline uint32_t cut_slack(const ScoreArgs& a) { return static_cast<uint32_t>(a.capacity - a.p.topk) / 4; }

// Block sizes are powers of two.
__device__ inline int64_t slot_of(const IndexKeysView& keys, int32_t seq, int32_t position) {
  const int64_t block = keys.block_table[seq * keys.table_stride + (position >> (__ffs(keys.block_size) - 1))];
  return block * keys.block_size + (position & (keys.block_size - 1));
}

}  // namespace fovea::cuda::dsa
