// What the lanes of a job are, for every engine: their queries, what they see of a key tile, and where their sums go.
#pragma once

#include <cstdint>

#include "kernels/cpu/attention/prefill_scratch.h"
#include "kernels/cpu/xattention/xattention_job.h"

namespace fovea::cpu {

// Arrays over the lanes of a job, filled up with copies of the last.
struct XLanes {
  int32_t* cell = nullptr;  // of the sequence
  int32_t* lo = nullptr;    // the queries that exist meet keys s of [lo, hi) of a cell
  int32_t* hi = nullptr;
  int64_t* out = nullptr;  // element of tops and weights at block 0
};
XLanes carve_lanes(ScratchCarver& c, int32_t lanes);
void fill_xlanes(const XJob& job, int32_t padded, const XLanes& lanes);

// What q is multiplied by: scores come out in units of log2.
float xattention_scale(const XAttentionParams& p, int32_t kv_head);

// The query of a lane of the job that meets key s of a cell; null: it does not exist.
const float* xattention_query(const XJob& job, int32_t lane, int32_t s);

// Some lanes of a job against cells [first, first + seen) of keys.
struct XPanelView {
  int32_t lane = 0;
  int32_t lanes = 0;
  int64_t first = 0;
  int32_t seen = 0;       // cells that some lane sees; 0 or less: none
  int32_t own = 0;        // diagonal: cells before this one are no lane's own
  bool diagonal = false;  // causal: a lane's own cell is among them
  bool whole = false;     // every lane sees every pair of every cell
};
XPanelView xattention_panel(const XJob& job, const XLanes& lanes, int32_t lane, int32_t count, int64_t first, int32_t cells);

// Masks the scores s of a view, [seen, panel], and leaves each lane's greatest score and weight of each block. s_half: the
// scores over the first half of the depth, where the view is diagonal. panel: a multiple of every target's vector.
void xattention_weigh(const XJob& job, const XLanes& lanes, const XPanelView& view, float* s, const float* s_half, int32_t panel);

// P of `cells` rows: sums[b] = sum over the rows of their share in block b. tops and weights are the first row's; the
// next lies row_stride further. weights is overwritten.
void xattention_sum_blocks(const float* tops, float* weights, int64_t row_stride, int32_t cells, int32_t blocks, float* sums);

}  // namespace fovea::cpu
