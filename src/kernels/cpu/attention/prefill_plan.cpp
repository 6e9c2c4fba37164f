#include "kernels/cpu/attention/prefill_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "base/check.h"
#include "kernels/common/convert.h"

namespace fovea::cpu {
namespace {

bool dense(const Selection* s) { return s == nullptr || s->kind == Selection::Kind::all; }

int32_t div_up(int32_t a, int32_t b) { return (a + b - 1) / b; }

// The row of the Selection that holds query row `row`; rows ascend from call to call, so the search goes on
// from `from`.
int32_t find_selection_row(const Selection& s, int32_t row, int32_t from) {
  if (s.row_indptr == nullptr) return row;
  while (from + 1 < s.rows && s.row_indptr[from + 1] <= row) ++from;
  FOVEA_CHECK(s.row_indptr[from] <= row && row < s.row_indptr[from + 1]);
  return from;
}

// Cuts every sequence at the Selection's row ranges and each range into equal tiles of at most tile_rows.
int32_t cut_rows(const AttentionParams& p, int32_t tile_rows, RowTile* tiles) {
  const bool all = dense(p.selection);
  int32_t count = 0, selection_row = 0;
  for (int32_t s = 0; s < p.num_seqs; ++s) {
    const int32_t end = p.q_indptr[s + 1];
    for (int32_t row = p.q_indptr[s]; row < end;) {
      int32_t stop = end;
      if (!all) {
        selection_row = find_selection_row(*p.selection, row, selection_row);
        stop = p.selection->row_indptr ? std::min(end, p.selection->row_indptr[selection_row + 1]) : row + 1;
      }
      const int32_t pieces = div_up(stop - row, tile_rows);
      const int32_t rows = div_up(stop - row, pieces);
      for (; row < stop; row += rows) {
        const int32_t n = std::min(rows, stop - row);
        const int64_t last_pos = static_cast<int64_t>(p.seq_len[s]) - (end - row) + n - 1;
        tiles[count++] = {s, row, n, selection_row, (last_pos + 1) * n};
      }
      row = stop;
    }
  }
  return count;
}

}  // namespace

KeyList select_keys(const Selection* s, int32_t row, int32_t kv_head, int32_t head) {
  KeyList keys;
  if (dense(s)) return keys;
  const int32_t group = s->heads == HeadGroups::all ? 0 : s->heads == HeadGroups::per_kv_head ? kv_head : head;
  FOVEA_CHECK(row < s->rows && group < s->groups);
  const int64_t list = static_cast<int64_t>(row) * s->groups + group;
  keys.tokens_per_unit = s->tokens_per_unit;
  if (s->kind == Selection::Kind::range) {
    keys.first = s->begins[list] * keys.tokens_per_unit;
    keys.total = std::max(0, s->ends[list] - s->begins[list]) * keys.tokens_per_unit;
    return keys;
  }
  keys.count = s->counts[list];
  keys.units = s->units + list * s->capacity;
  FOVEA_CHECK(keys.count <= s->capacity);
  return keys;
}

PrefillPlan plan_prefill(const AttentionParams& p, const JobLanes& lanes, int32_t threads, RowTile* tiles) {
  PrefillPlan plan;
  const int32_t group = p.num_heads / p.kv.kv_heads;
  const bool lone_heads = !dense(p.selection) && p.selection->heads == HeadGroups::per_query_head;
  plan.heads = lone_heads ? 1 : std::min(group, lanes.most);
  plan.units_per_kv = div_up(group, plan.heads);
  const int64_t units = static_cast<int64_t>(plan.units_per_kv) * p.kv.kv_heads;
  const auto cut = [&](int32_t most_lanes) { return cut_rows(p, std::max(1, most_lanes / plan.heads), tiles); };
  // Larger tiles lay out each key less often; but threads take their tasks in turns, and wait for the last one half a task long.
  int32_t best = lanes.most;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int32_t most = lanes.most; most > 0; most -= lanes.panel) {
    const int32_t count = cut(most);
    const int32_t rows = std::max_element(tiles, tiles + count, [](const auto& a, const auto& b) { return a.rows < b.rows; })->rows;
    const int64_t turns = (count * units + threads - 1) / threads;
    const int64_t cost = (2 * turns + 1) * (div_up(rows * plan.heads, lanes.panel) * lanes.panel + lanes.key_tile);
    if (cost < least) least = cost, best = most;
  }
  plan.tiles = cut(best);
  std::sort(tiles, tiles + plan.tiles,
            [](const RowTile& a, const RowTile& b) { return a.keys != b.keys ? a.keys > b.keys : a.row < b.row; });
  plan.tasks = plan.tiles * units;
  return plan;
}

TileJob prefill_job(const AttentionParams& p, const PrefillPlan& plan, const RowTile* tiles, int64_t task) {
  const RowTile& tile = tiles[task % plan.tiles];
  const auto unit = static_cast<int32_t>(task / plan.tiles);
  const int32_t group = p.num_heads / p.kv.kv_heads;
  TileJob job;
  job.params = &p;
  job.seq = tile.seq;
  job.kv_head = unit / plan.units_per_kv;
  const int32_t inside = unit % plan.units_per_kv * plan.heads;
  job.head = job.kv_head * group + inside;
  job.heads = std::min(plan.heads, group - inside);
  job.row = tile.row;
  job.rows = tile.rows;
  job.pos = static_cast<int64_t>(p.seq_len[tile.seq]) - (p.q_indptr[tile.seq + 1] - tile.row);
  FOVEA_CHECK(job.pos >= 0 || p.seq_len[tile.seq] == 0);
  job.keys = select_keys(p.selection, tile.selection_row, job.kv_head, job.head);
  return job;
}

void fill_lanes(const TileJob& job, int32_t padded, LaneView lanes) {
  const AttentionParams& p = *job.params;
  int32_t lane = 0;
  for (int32_t t = 0; t < job.rows; ++t) {
    const int64_t pos = job.pos + t;
    const int64_t hi = job.keys.count_upto(pos);
    const int64_t lo = p.window > 0 ? job.keys.count_upto(pos - p.window) : 0;
    for (int32_t g = 0; g < job.heads; ++g, ++lane) {
      lanes.lo[lane] = lo;
      lanes.hi[lane] = hi;
      lanes.pos[lane] = static_cast<float>(pos);
      lanes.slope[lane] = p.alibi_slopes ? p.alibi_slopes[job.head + g] * std::numbers::log2e_v<float> : 0.0f;
    }
  }
  for (; lane < padded; ++lane) {
    lanes.lo[lane] = lanes.lo[lane - 1];
    lanes.hi[lane] = lanes.hi[lane - 1];
    lanes.pos[lane] = lanes.pos[lane - 1];
    lanes.slope[lane] = lanes.slope[lane - 1];
  }
}

Panel panel_of(const LaneView& lanes, int32_t lane, int32_t size, int64_t base, int32_t tile_keys) {
  int64_t lo_min = lanes.lo[lane], lo_max = lo_min, hi_min = lanes.hi[lane], hi_max = hi_min;
  for (int32_t i = lane; i < lane + size; ++i) {
    lo_min = std::min(lo_min, lanes.lo[i]);
    lo_max = std::max(lo_max, lanes.lo[i]);
    hi_min = std::min(hi_min, lanes.hi[i]);
    hi_max = std::max(hi_max, lanes.hi[i]);
  }
  Panel panel{.lane = lane};
  panel.j0 = static_cast<int32_t>(std::clamp<int64_t>(lo_min - base, 0, tile_keys));
  panel.j1 = static_cast<int32_t>(std::clamp<int64_t>(hi_max - base, 0, tile_keys));
  panel.whole = lo_max <= base + panel.j0 && hi_min >= base + panel.j1;
  return panel;
}

void load_query(const AttentionParams& p, int64_t at, float* to) {
  const int32_t dim = p.kv.head_dim;
  if (p.dtype == DType::f32) {
    std::copy_n(static_cast<const float*>(p.q) + at, dim, to);
  } else {
    for (int32_t i = 0; i < dim; ++i) to[i] = load_as_f32(p.q, p.dtype, at + i);
  }
}

void store_results(const TileJob& job, const LaneResults& r) {
  const AttentionParams& p = *job.params;
  const int32_t dim = p.kv.head_dim;
  const float v_scale = p.kv.v_scale ? p.kv.v_scale[job.kv_head] : 1.0f;
  for (int32_t lane = 0; lane < job.rows * job.heads; ++lane) {
    const int64_t row = job.row + lane / job.heads;
    const int64_t at = row * p.heads_per_row() + job.head + lane % job.heads;
    const float* o = r.o + static_cast<int64_t>(lane / r.panel) * r.panel * r.dim_stride + lane % r.panel;
    const bool empty = r.l[lane] == 0.0f;
    const float scale = empty ? 0.0f : v_scale / r.l[lane];
    if (p.dtype == DType::f32) {  // no branch for each element
      float* to = static_cast<float*>(p.out) + at * dim;
      for (int32_t i = 0; i < dim; ++i) to[i] = o[static_cast<int64_t>(i) * r.panel] * scale;
    } else {
      for (int32_t i = 0; i < dim; ++i) store_f32(p.out, p.dtype, at * dim + i, o[static_cast<int64_t>(i) * r.panel] * scale);
    }
    if (p.lse == nullptr) continue;
    p.lse[at] = empty ? -std::numeric_limits<float>::infinity() : r.m[lane] * std::numbers::ln2_v<float> + std::log(r.l[lane]);
  }
}

}  // namespace fovea::cpu
