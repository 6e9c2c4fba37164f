// Cuts one prefill call into tasks: (sequence, range of query rows, heads that share their keys). Pure.
#pragma once

#include <fovea/kernels/attention.h>

#include <cstdint>

#include "kernels/cpu/attention/prefill_keys.h"
#include "kernels/ops/key_gate.h"

namespace fovea::cpu {

// Rows of one sequence that share a row of the Selection.
struct RowTile {
  int32_t seq = 0;
  int32_t row = 0;  // first, of q and out
  int32_t rows = 0;
  int32_t selection_row = 0;
  int64_t keys = 0;  // seen by the last row: what the tile costs, per row
};

// One task. Lane t * heads + g is query row row + t, head head + g.
struct TileJob {
  const AttentionParams* params = nullptr;
  KeyList keys;
  int32_t seq = 0;
  int32_t kv_head = 0;
  int32_t head = 0;
  int32_t heads = 0;
  int32_t row = 0;
  int32_t rows = 0;
  int64_t pos = 0;  // of row
};

// How tasks divide over the heads: every head_unit is `heads` query heads (the last of a KV head may be
// fewer) that read the same keys.
struct PrefillPlan {
  int32_t tiles = 0;  // in the caller's array, the costliest first
  int32_t heads = 1;  // query heads of a unit
  int32_t units_per_kv = 1;
  int64_t tasks = 0;  // tiles * units_per_kv * kv_heads
};

// Lanes (rows x heads) of an engine's jobs.
struct JobLanes {
  int32_t most = 0;      // of a job
  int32_t panel = 0;     // that are computed together
  int32_t key_tile = 0;  // what laying out a tile of keys costs
};

// Tiles with which the threads end first. tiles: [T], enough for any call.
PrefillPlan plan_prefill(const AttentionParams& p, const JobLanes& lanes, int32_t threads, RowTile* tiles);

// Until the keys before `end` may be read.
inline void wait_for_keys(const TileJob& job, int64_t end) {
  const AttentionParams& p = *job.params;
  if (p.gate) p.gate->wait(job.kv_head, (end + p.kv.block_size - 1) / p.kv.block_size);
}

// All tiles of one head unit follow each other, so that a head's K and V stay in the last-level cache.
TileJob prefill_job(const AttentionParams& p, const PrefillPlan& plan, const RowTile* tiles, int64_t task);

// What each lane of a job sees: keys [lo, hi) of its list. Filled up to `padded` lanes with copies of the
// last.
struct LaneView {
  int64_t* lo = nullptr;
  int64_t* hi = nullptr;
  float* pos = nullptr;    // of the query
  float* slope = nullptr;  // ALiBi, in units of log2; zero without
};
void fill_lanes(const TileJob& job, int32_t padded, LaneView lanes);

// The query that begins at element `at` of q, as float32. to: [head_dim].
void load_query(const AttentionParams& p, int64_t at, float* to);

// What the lanes [lane, lane + size) see of the key tile that starts at index `base`: some lane sees a key of
// [j0, j1).
struct Panel {
  int32_t lane = 0;
  int32_t j0 = 0, j1 = 0;  // relative to base; j0 >= j1: nothing
  bool whole = false;      // every lane sees all of [j0, j1)
};
Panel panel_of(const LaneView& lanes, int32_t lane, int32_t size, int64_t base, int32_t tile_keys);

// Running state of the lanes after their last key, and where to put it. Lanes are stored in panels of `panel`
// lanes.
struct LaneResults {
  const float* o = nullptr;  // [panels, dim_stride, panel] sum of weight * v
  const float* m = nullptr;  // [lanes] maximum, in units of log2
  const float* l = nullptr;  // [lanes] sum of weights; 0: saw no key
  int32_t panel = 0;
  int32_t dim_stride = 0;
};
void store_results(const TileJob& job, const LaneResults& r);

}  // namespace fovea::cpu
