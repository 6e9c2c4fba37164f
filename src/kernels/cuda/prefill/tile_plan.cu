// Cuts the query rows of a call into RowTiles. One block: there are few sequences, and few ranges of rows that share a
// list, beside the work that the tiles make.
#include "kernels/cuda/prefill/kernels.h"

namespace fovea::cuda::prefill {
namespace {

constexpr int32_t kThreads = 512;

// The last index i with starts[i] <= row, of an ascending array with starts[0] <= row.
__device__ int32_t last_at_or_before(const int32_t* starts, int32_t count, int32_t row) {
  int32_t low = 0, high = count;
  while (high - low > 1) {
    const int32_t middle = (low + high) / 2;
    (starts[middle] <= row ? low : high) = middle;
  }
  return low;
}

// Rows of one sequence with one list. Segment i begins where list range i begins; segment lists + s where sequence s does,
// unless a range begins there too. Many are empty.
__device__ RowTile find_segment(const PrefillArgs& a, int32_t i, int32_t lists) {
  const int32_t* q_indptr = a.p.q_indptr;
  const int32_t* ranges = a.selection.row_indptr;
  RowTile t;
  if (i < lists) {
    t.list = i;
    t.row = ranges[i];
    t.seq = last_at_or_before(q_indptr, a.p.num_seqs, t.row);
  } else {
    t.seq = i - lists;
    t.row = q_indptr[t.seq];
    if (lists > 0) {
      t.list = last_at_or_before(ranges, lists, t.row);
      if (ranges[t.list] == t.row) return t;
    }
  }
  const int32_t end = q_indptr[t.seq + 1];
  t.rows = (lists > 0 ? min(end, ranges[t.list + 1]) : end) - t.row;
  return t;
}

// Exclusive sum over the block; every thread also gets the total.
__device__ int32_t sum_before(int32_t x, int32_t* sums, int32_t* total) {
  const int32_t thread = threadIdx.x;
  sums[thread] = x;
  __syncthreads();
  for (int32_t step = 1; step < kThreads; step *= 2) {
    const int32_t left = thread >= step ? sums[thread - step] : 0;
    __syncthreads();
    sums[thread] += left;
    __syncthreads();
  }
  *total = sums[kThreads - 1];
  return sums[thread] - x;
}

__global__ void __launch_bounds__(kThreads) tile_plan(const __grid_constant__ PrefillArgs a) {
  __shared__ int32_t sums[kThreads];
  __shared__ RowTile segments[kThreads];
  const int32_t thread = threadIdx.x;
  const bool selected = a.selection.kind != Selection::Kind::all;
  const bool list_per_row = selected && a.selection.row_indptr == nullptr;
  const int32_t lists = selected && !list_per_row ? a.selection.rows : 0;
  const int32_t count = lists + a.p.num_seqs;

  int32_t written = 0;
  for (int32_t first = 0; first < count; first += kThreads) {
    const RowTile mine = first + thread < count ? find_segment(a, first + thread, lists) : RowTile{};
    const int32_t mine_tiles = (max(mine.rows, 0) + a.rows_per_tile - 1) / a.rows_per_tile;
    int32_t total = 0;
    sum_before(mine_tiles, sums, &total);  // leaves sums[i]: tiles of segments 0..i
    segments[thread] = mine;
    __syncthreads();
    for (int32_t i = thread; i < total; i += kThreads) {
      const int32_t s = sums[0] > i ? 0 : last_at_or_before(sums, kThreads, i) + 1;
      RowTile t = segments[s];
      const int32_t skip = (i - (s > 0 ? sums[s - 1] : 0)) * a.rows_per_tile;
      t.row += skip;
      t.rows = min(t.rows - skip, a.rows_per_tile);
      if (list_per_row) t.list = t.row;
      a.tiles[written + i] = t;
    }
    written += total;
    __syncthreads();
  }
  if (thread == 0) *a.tile_count = written, *a.taken = 0;
}

}  // namespace

PrefillKernel tile_plan_kernel() { return {reinterpret_cast<const void*>(&tile_plan), kThreads, 0}; }

}  // namespace fovea::cuda::prefill
