// What scores of cells become, whichever engine made them: masks, block sums, P.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/xattention/xattention_weigh.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <limits>

#include "kernels/cpu/attention/prefill_vector_inl.h"
#include "kernels/cpu/xattention/xattention_lanes.h"

HWY_BEFORE_NAMESPACE();
namespace fovea::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Puts -inf where a cell has no pair, and where a cell of queries meets itself (causal) the sum over the pairs whose key
// is not after its query: those are the first half of the depth. One vector of lanes.
void mask(const XJob& job, const XLanes& lanes, const XPanelView& view, int32_t lane, float* s, const float* s_half,
          int32_t panel) {
  const XAttentionParams& p = *job.params;
  const D d;
  const DI di;
  const V none = hn::Set(d, -std::numeric_limits<float>::infinity());
  const auto cell = hn::LoadU(di, lanes.cell + lane);
  const auto lo = hn::LoadU(di, lanes.lo + lane), hi = hn::LoadU(di, lanes.hi + lane);
  for (int32_t j = 0; j < view.seen; ++j, s += panel, s_half += panel) {
    const int64_t left = job.strip->len - (view.first + j) * p.stride;  // keys from the cell's first on
    auto stop = hn::Min(hi, hn::Set(di, static_cast<int32_t>(std::min<int64_t>(p.stride, left))));
    V x = hn::Load(d, s);
    auto seen = hn::Lt(lo, stop);
    if (p.causal) {
      const auto here = hn::Set(di, static_cast<int32_t>(view.first + j));
      const auto own = hn::Eq(cell, here);
      stop = hn::IfThenElse(own, hn::Min(stop, hn::Set(di, p.stride / 2)), stop);
      x = hn::IfThenElse(hn::RebindMask(d, own), hn::Load(d, s_half), x);
      seen = hn::AndNot(hn::Gt(here, cell), hn::Lt(lo, stop));
    }
    hn::Store(hn::IfThenElse(hn::RebindMask(d, seen), x, none), d, s);
  }
}

void weigh(const XJob& job, const XLanes& lanes, const XPanelView& view, float* s, const float* s_half, int32_t panel) {
  const D d;
  const int32_t per_block = job.params->block_size / job.params->stride;
  for (int32_t c = 0; c < view.lanes; c += kVec) {
    const int32_t lane = view.lane + c;
    if (!view.whole) mask(job, lanes, view, lane, s + c, s_half + c, panel);
    for (int32_t from = 0; from < view.seen; from += per_block) {
      const float* at = s + from * panel + c;
      const int32_t n = std::min(per_block, view.seen - from);
      V top = hn::Set(d, kXNoMax), sum = hn::Zero(d);
      for (int32_t j = 0; j < n; ++j) top = hn::Max(top, hn::Load(d, at + j * panel));
      for (int32_t j = 0; j < n; ++j) {
        sum = hn::Add(sum, exp2_nonpositive(hn::Sub(hn::Load(d, at + j * panel), top)));
      }
      HWY_ALIGN float tops[kVec] = {}, sums[kVec] = {};
      hn::Store(top, d, tops);
      hn::Store(sum, d, sums);
      const int64_t block = (view.first + from) / per_block;
      for (int32_t i = 0; i < std::min(kVec, view.lanes - c); ++i) {
        job.tops[lanes.out[lane + i] + block] = tops[i];
        job.weights[lanes.out[lane + i] + block] = sums[i];
      }
    }
  }
}

void sum_blocks(const float* tops, float* weights, int64_t row_stride, int32_t cells, int32_t blocks, float* sums) {
  const D d;
  std::fill(sums, sums + blocks, 0.0f);
  for (int32_t i = 0; i < cells; ++i, tops += row_stride, weights += row_stride) {
    const float top = *std::max_element(tops, tops + blocks);
    V total = hn::Zero(d);
    int32_t b = 0;
    for (; b + kVec <= blocks; b += kVec) {
      const V x = exp2_nonpositive(hn::Sub(hn::LoadU(d, tops + b), hn::Set(d, top)));
      const V share = hn::Mul(hn::LoadU(d, weights + b), x);
      hn::StoreU(share, d, weights + b);
      total = hn::Add(total, share);
    }
    float all = hn::GetLane(hn::SumOfLanes(d, total));
    for (; b < blocks; ++b) {
      weights[b] *= hn::GetLane(exp2_nonpositive(hn::Set(d, tops[b] - top)));
      all += weights[b];
    }
    if (all == 0.0f) continue;  // no cell of the row has a pair
    const float scale = 1.0f / all;
    for (b = 0; b < blocks; ++b) sums[b] += weights[b] * scale;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fovea::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fovea::cpu {

HWY_EXPORT(weigh);
HWY_EXPORT(sum_blocks);

void xattention_weigh(const XJob& job, const XLanes& lanes, const XPanelView& view, float* s, const float* s_half, int32_t panel) {
  HWY_DYNAMIC_DISPATCH(weigh)(job, lanes, view, s, s_half, panel);
}

void xattention_sum_blocks(const float* tops, float* weights, int64_t row_stride, int32_t cells, int32_t blocks, float* sums) {
  HWY_DYNAMIC_DISPATCH(sum_blocks)(tops, weights, row_stride, cells, blocks, sums);
}

}  // namespace fovea::cpu
#endif
