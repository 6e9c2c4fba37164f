#include "kernels/cpu/xattention/xattention_lanes.h"

#include <algorithm>
#include <numbers>

namespace fovea::cpu {

XLanes carve_lanes(ScratchCarver& c, int32_t lanes) {
  const auto ints = [&] { return reinterpret_cast<int32_t*>(c.floats(lanes)); };
  XLanes l;
  l.cell = ints();
  l.lo = ints();
  l.hi = ints();
  l.out = c.longs(lanes);
  return l;
}

void fill_xlanes(const XJob& job, int32_t padded, const XLanes& lanes) {
  const XAttentionParams& p = *job.params;
  const XStrip& strip = *job.strip;
  const int32_t group = p.num_heads / p.kv.kv_heads, stride = p.stride;
  for (int32_t i = 0; i < padded; ++i) {
    const int32_t lane = job.lane + std::min(i, job.lanes - 1), cell = lane / group;
    // The query at offset o of its cell meets s = stride - 1 - o; those of [from, to) exist.
    const int64_t at = (int64_t{strip.cell} + cell) * stride;
    const auto from = static_cast<int32_t>(std::max<int64_t>(0, strip.begin - at));
    const auto to = static_cast<int32_t>(std::min<int64_t>(stride, strip.end - at));
    lanes.cell[i] = strip.cell + cell;
    lanes.lo[i] = stride - to;
    lanes.hi[i] = stride - from;
    const int64_t head = int64_t{job.kv_head} * group + lane % group;
    lanes.out[i] = ((int64_t{strip.first_out} + cell) * p.num_heads + head) * job.block_stride;
  }
}

float xattention_scale(const XAttentionParams& p, int32_t kv_head) {
  const float k_scale = p.kv.k_scale ? p.kv.k_scale[kv_head] : 1.0f;
  return std::numbers::log2e_v<float> * p.scale * k_scale / (static_cast<float>(p.stride) * p.norm);
}

const float* xattention_query(const XJob& job, int32_t lane, int32_t s) {
  const XAttentionParams& p = *job.params;
  const XStrip& strip = *job.strip;
  const int32_t group = p.num_heads / p.kv.kv_heads, in_strip = job.lane + lane;
  const int64_t pos = (int64_t{strip.cell} + in_strip / group) * p.stride + p.stride - 1 - s;
  if (pos < strip.begin || pos >= strip.end) return nullptr;
  const int64_t head = int64_t{job.kv_head} * group + in_strip % group;
  return p.q + ((strip.row + pos - strip.begin) * p.num_heads + head) * p.kv.head_dim;
}

XPanelView xattention_panel(const XJob& job, const XLanes& lanes, int32_t lane, int32_t count, int64_t first, int32_t cells) {
  const XAttentionParams& p = *job.params;
  const int64_t low = lanes.cell[lane], high = lanes.cell[lane + count - 1];
  XPanelView v;
  v.lane = lane;
  v.lanes = count;
  v.first = first;
  v.seen = p.causal ? static_cast<int32_t>(std::min<int64_t>(cells, high + 1 - first)) : cells;
  v.own = static_cast<int32_t>(std::max<int64_t>(0, low - first));
  v.diagonal = p.causal && first + v.seen > low;
  v.whole = !v.diagonal && (first + v.seen) * p.stride <= job.strip->len;
  return v;
}

}  // namespace fovea::cpu
