// Which keys a tile of rows reads, in list order, and what each of its lanes sees of them.
#pragma once

#include <climits>
#include <cstdint>

#include "kernels/cuda/prefill/args.h"

namespace fovea::cuda::prefill {

// Key j of [0, count_upto(last position)) lies at position(j); ascending. Tiles of keys are cut out of j, so they do not
// depend on who reads them.
struct KeyList {
  const int32_t* units = nullptr;  // null: consecutive positions from `first`
  int32_t count = 0;               // units
  int32_t tokens = 1;              // of a unit
  int32_t first = 0;
  int32_t total = INT_MAX;  // of consecutive keys

  // How many keys lie at positions <= pos.
  __device__ int32_t count_upto(int32_t pos) const {
    if (units == nullptr) return min(max(pos - first + 1, 0), total);
    const int32_t begun = units_upto(pos);
    if (begun == 0) return 0;
    const int32_t inside = pos - __ldg(&units[begun - 1]) * tokens + 1;
    return (begun - 1) * tokens + min(inside, tokens);
  }

 private:
  // How many units begin at positions <= pos. Searches from the end: a prefill list ends near its rows.
  __device__ int32_t units_upto(int32_t pos) const {
    int32_t above = count, below = count - 1;
    for (int32_t step = 1; below >= 0 && starts_after(below, pos); step *= 2) {
      above = below;
      below -= step;
    }
    below = max(below, -1);
    while (above - below > 1) {
      const int32_t middle = (above + below) / 2;
      (starts_after(middle, pos) ? above : below) = middle;
    }
    return above;
  }
  __device__ bool starts_after(int32_t unit, int32_t pos) const { return static_cast<int64_t>(__ldg(&units[unit])) * tokens > pos; }
};

__device__ inline KeyList find_keys(const Selection& s, int32_t row, int32_t kv_head, int32_t head) {
  KeyList keys;
  if (s.kind == Selection::Kind::all) return keys;
  const int32_t group = s.heads == HeadGroups::all ? 0 : s.heads == HeadGroups::per_kv_head ? kv_head : head;
  const int64_t list = static_cast<int64_t>(row) * s.groups + group;
  keys.tokens = s.tokens_per_unit;
  if (s.kind == Selection::Kind::range) {
    const int64_t begin = static_cast<int64_t>(s.begins[list]) * keys.tokens;
    const int64_t end = static_cast<int64_t>(s.ends[list]) * keys.tokens;
    keys.first = static_cast<int32_t>(min(begin, static_cast<int64_t>(INT_MAX)));
    keys.total = static_cast<int32_t>(min(max(end - begin, int64_t{0}), static_cast<int64_t>(INT_MAX)));
    return keys;
  }
  keys.units = s.units + list * s.capacity;
  keys.count = s.counts[list];
  return keys;
}

__device__ inline int64_t heads_per_row(const AttentionParams& p) { return p.q_heads != 0 ? p.q_heads : p.num_heads; }

// Keys [begin, end) of a list.
struct KeySpan {
  int32_t begin, end;
  __device__ bool holds(int32_t key) const { return begin <= key && key < end; }
};

// The work of one block: rows x heads of a tile, and the keys that some lane of it sees.
struct Job {
  RowTile tile;
  int32_t kv_head;
  int32_t head;   // first query head
  int32_t heads;  // query heads
  int32_t lanes;  // in use: rows * heads; lane l is row l / heads, head l % heads
  int32_t pos;    // of the first row
  KeyList keys;
  KeySpan span;          // some lane sees each of these, none another
  const int32_t* slots;  // page table of this sequence and KV head

  __device__ int64_t row_head(int32_t lane, int64_t heads_per_row) const {  // index into q, out and lse
    return (tile.row + lane / heads) * heads_per_row + head + lane % heads;
  }
};

// How many keys of the list lie before the window of a query at `pos`.
__device__ inline int32_t keys_before(const PrefillArgs& a, const KeyList& keys, int32_t pos) {
  return a.p.window > 0 ? keys.count_upto(pos - a.p.window) : 0;
}

// The latest tile of rows, which reads most, is number 0; `heads` counts parts of KV heads. False: there is no such tile.
__device__ inline bool find_job(const PrefillArgs& a, int32_t tile, int32_t heads, Job& job) {
  const int32_t tiles = *a.tile_count;
  if (tile >= tiles) return false;
  job.tile = a.tiles[tiles - 1 - tile];
  const int32_t group = a.p.num_heads / a.p.kv.kv_heads;
  const int32_t part = heads % a.tiles_per_group;
  job.kv_head = heads / a.tiles_per_group;
  job.head = job.kv_head * group + part * a.heads_per_tile;
  job.heads = min(a.heads_per_tile, group - part * a.heads_per_tile);
  job.lanes = job.tile.rows * job.heads;
  job.pos = a.p.seq_len[job.tile.seq] - (a.p.q_indptr[job.tile.seq + 1] - job.tile.row);
  job.keys = find_keys(a.selection, job.tile.list, job.kv_head, job.head);
  job.span = {keys_before(a, job.keys, job.pos), job.keys.count_upto(job.pos + job.tile.rows - 1)};
  const PageTableView& table = a.p.kv.table;
  job.slots = table.slots + job.tile.seq * table.seq_stride + job.kv_head * table.head_stride;
  return true;
}

// Per lane, in shared memory: the keys [lo, hi) of the job's list that it sees.
template <int kLanes>
struct LaneViews {
  int32_t lo[kLanes];
  int32_t hi[kLanes];
  int32_t pos[kLanes];  // of the query
  float slope[kLanes];  // ALiBi, in units of log2; 0 without
};

// Empty lanes see nothing. Both ends rise from lane to lane. `thread` of `threads` that do it together.
template <int kLanes>
__device__ void fill_lane_views(const PrefillArgs& a, const Job& job, LaneViews<kLanes>& views, int thread, int threads) {
  for (int32_t lane = thread; lane < kLanes; lane += threads) {
    const bool used = lane < job.lanes;
    const int32_t pos = job.pos + lane / job.heads;
    const int32_t hi = used ? job.keys.count_upto(pos) : 0;
    const int32_t lo = used ? keys_before(a, job.keys, pos) : 0;
    views.lo[lane] = lo;
    views.hi[lane] = hi;
    views.pos[lane] = pos;
    views.slope[lane] = used && a.p.alibi_slopes != nullptr ? a.p.alibi_slopes[job.head + lane % job.heads] * 1.44269504f : 0.0f;
    if (used && a.p.keys_read != nullptr && lane % job.heads == 0) {
      atomicAdd(reinterpret_cast<unsigned long long*>(&a.p.keys_read[job.tile.row + lane / job.heads]),
                static_cast<unsigned long long>(max(hi - lo, 0)) * job.heads);
    }
  }
}

}  // namespace fovea::cuda::prefill
