// The running choice of the best keys, once per Highway target.
//
// A list takes every key that beats its bound, in ascending position, and is cut back to the best when it is full. The cut
// is a bisection over the int32 ranks of the scores, a counting sweep each, and one compaction: no sort, no heap, and the
// order of positions is kept, so the last cut leaves the answer as it is wanted.
#if defined(FOVEA_KERNELS_CPU_DSA_CANDIDATES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_KERNELS_CPU_DSA_CANDIDATES_INL_H_
#undef FOVEA_KERNELS_CPU_DSA_CANDIDATES_INL_H_
#else
#define FOVEA_KERNELS_CPU_DSA_CANDIDATES_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include <hwy/highway.h>
#include "kernels/cpu/dsa/dsa_panel_inl.h"
#include "kernels/cpu/dsa/dsa_sweep.h"

HWY_BEFORE_NAMESPACE();
namespace fovea::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DI = hn::RebindToSigned<D>;
using VI = hn::Vec<DI>;

constexpr IndexRank kRankOfNan = std::numeric_limits<int32_t>::min();
constexpr IndexRank kRankOfMinusInfinity = static_cast<int32_t>(0x807fffff);

HWY_INLINE VI rank_of(V score) {
  const D d;
  const DI di;
  const VI bits = hn::BitCast(di, hn::Add(score, hn::Zero(d)));  // -0 becomes +0
  const VI rank = hn::Xor(bits, hn::And(hn::ShiftRight<31>(bits), hn::Set(di, 0x7fffffff)));
  return hn::IfThenElse(hn::RebindMask(di, hn::IsNaN(score)), hn::Set(di, kRankOfNan), rank);
}

inline float score_of(IndexRank rank) { return std::bit_cast<float>(rank < 0 ? rank ^ 0x7fffffff : rank); }

// How many of ranks[0, count) are at least `least`.
HWY_INLINE int32_t count_from(const IndexRank* ranks, int32_t count, IndexRank least) {
  const DI di;
  const VI bar = hn::Set(di, least);
  VI below0 = hn::Zero(di), below1 = below0;  // a mask is -1 in each lane
  int32_t i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) {
    below0 = hn::Add(below0, hn::VecFromMask(di, hn::Gt(bar, hn::LoadU(di, ranks + i))));
    below1 = hn::Add(below1, hn::VecFromMask(di, hn::Gt(bar, hn::LoadU(di, ranks + i + kLanes))));
  }
  int32_t below = -hn::GetLane(hn::SumOfLanes(di, hn::Add(below0, below1)));
  for (; i < count; ++i) below += ranks[i] < least;
  return count - below;
}

// The least and the greatest rank of a list that is not empty.
HWY_INLINE void rank_limits(const IndexCandidates& c, IndexRank* low, IndexRank* high) {
  const DI di;
  VI least = hn::Set(di, c.ranks[0]), greatest = least;
  int32_t i = 0;
  for (; i + kLanes <= c.count; i += kLanes) {
    const VI ranks = hn::LoadU(di, c.ranks + i);
    least = hn::Min(least, ranks);
    greatest = hn::Max(greatest, ranks);
  }
  *low = hn::GetLane(hn::MinOfLanes(di, least));
  *high = hn::GetLane(hn::MaxOfLanes(di, greatest));
  for (; i < c.count; ++i) *low = std::min(*low, c.ranks[i]), *high = std::max(*high, c.ranks[i]);
}

// A rank that at least `topk` and at most `most` of the candidates reach; where ties allow none, the rank of the topk-th.
HWY_INLINE IndexRank cut_rank(const IndexCandidates& c, int32_t topk, int32_t most) {
  IndexRank low = 0, high = 0;
  rank_limits(c, &low, &high);
  int64_t reached = low, missed = int64_t{high} + 1;  // reached by topk or more; not reached by as many
  while (missed - reached > 1) {
    const IndexRank middle = static_cast<IndexRank>((reached + missed) >> 1);
    const int32_t found = count_from(c.ranks, c.count, middle);
    if (found >= topk) {
      reached = middle;
      if (found <= most) break;
    } else {
      missed = middle;
    }
  }
  return static_cast<IndexRank>(reached);
}

// The lanes of a mask, side by side at the ends of a list. Whole vectors are stored (lists are padded for it): a compressing
// store to memory is several times slower.
HWY_INLINE void append(hn::Mask<DI> keep, VI ranks, VI positions, IndexRank* to_ranks, int32_t* to_positions) {
  const DI di;
  hn::StoreU(hn::Compress(ranks, keep), di, to_ranks);
  hn::StoreU(hn::Compress(positions, keep), di, to_positions);
}

// Keeps the candidates above `cut`, and of those that equal it the first `equals`.
HWY_INLINE void compact(IndexCandidates& c, IndexRank cut, int32_t equals) {
  const DI di;
  const VI bar = hn::Set(di, cut);
  int32_t kept = 0;
  const auto keep_one = [&](int32_t i) {
    if (c.ranks[i] < cut || (c.ranks[i] == cut && equals-- <= 0)) return;
    c.ranks[kept] = c.ranks[i];
    c.positions[kept++] = c.positions[i];
  };
  int32_t i = 0;
  for (; i + kLanes <= c.count; i += kLanes) {
    const VI ranks = hn::LoadU(di, c.ranks + i);
    const auto equal = hn::Eq(ranks, bar);
    const int32_t here = static_cast<int32_t>(hn::CountTrue(di, equal));
    if (here > equals && equals > 0) {  // the last of the equals that are kept are among these
      for (int32_t lane = 0; lane < kLanes; ++lane) keep_one(i + lane);
      equals = 0;
      continue;
    }
    const auto keep = here > equals ? hn::Gt(ranks, bar) : hn::Not(hn::Gt(bar, ranks));
    equals -= here > equals ? 0 : here;
    const VI positions = hn::LoadU(di, c.positions + i);
    append(keep, ranks, positions, c.ranks + kept, c.positions + kept);
    kept += static_cast<int32_t>(hn::CountTrue(di, keep));
  }
  for (; i < c.count; ++i) keep_one(i);
  c.count = kept;
}

// Cuts a list to between `topk` and `most` of its best, or all it has.
inline void keep_best(IndexCandidates& c, int32_t topk, int32_t most) {
  if (c.count <= topk) return;
  const IndexRank cut = cut_rank(c, topk, most);
  const int32_t reach = count_from(c.ranks, c.count, cut);
  const int32_t above = cut == std::numeric_limits<int32_t>::max() ? 0 : count_from(c.ranks, c.count, cut + 1);
  compact(c, cut, reach <= most ? reach - above : topk - above);
  // A later key that only equals the cut comes after topk that are as good. NaN and -inf are no bound for a comparison of
  // floats: such a list stays open.
  c.bounded = cut > kRankOfMinusInfinity;
  c.bound = score_of(cut);
}

// Appends the scores of keys [first, first + valid) that may be among the best.
HWY_INLINE void add_candidates(IndexCandidates& c, const float* scores, int32_t valid, int32_t first, int32_t topk) {
  const D d;
  const DI di;
  const V bound = hn::Set(d, c.bound);
  const auto passes = [&](V score) { return c.bounded ? hn::Gt(score, bound) : hn::FirstN(d, kLanes); };
  int32_t count = c.count;
  if (valid == kPanel) {
    const V s0 = hn::LoadU(d, scores), s1 = hn::LoadU(d, scores + kLanes), s2 = hn::LoadU(d, scores + 2 * kLanes);
    const auto keep0 = passes(s0), keep1 = passes(s1), keep2 = passes(s2);
    if (hn::AllFalse(d, hn::Or(hn::Or(keep0, keep1), keep2))) return;  // mostly none of them
    // Without a branch for each vector: whether one holds a candidate cannot be predicted.
    const auto take = [&](V score, hn::Mask<D> keep, int32_t at) {
      const auto keep_i = hn::RebindMask(di, keep);
      append(keep_i, rank_of(score), hn::Iota(di, first + at), c.ranks + count, c.positions + count);
      count += static_cast<int32_t>(hn::CountTrue(di, keep_i));
    };
    take(s0, keep0, 0);
    take(s1, keep1, kLanes);
    take(s2, keep2, 2 * kLanes);
  } else {
    for (int32_t v = 0; v < valid; v += kLanes) {
      const V score = hn::LoadU(d, scores + v);
      const auto keep = hn::And(passes(score), hn::FirstN(d, static_cast<size_t>(std::min(kLanes, valid - v))));
      const auto keep_i = hn::RebindMask(di, keep);
      append(keep_i, rank_of(score), hn::Iota(di, first + v), c.ranks + count, c.positions + count);
      count += static_cast<int32_t>(hn::CountTrue(di, keep_i));
    }
  }
  c.count = count;
  if (count > c.capacity - kPanel) keep_best(c, topk, topk + (c.capacity - topk) / 4);
}

}  // namespace fovea::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // the include guard
