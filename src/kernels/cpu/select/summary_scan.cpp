#include "kernels/cpu/select/summary_scan.h"

#include <limits>

#include "kernels/cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/select/summary_scan.cpp"
#define HWY_WANT_AVX3_DL
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>
#include "kernels/cpu/elementwise/elementwise_inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea::cpu::HWY_NAMESPACE {

HWY_INLINE float mean_score(const float* HWY_RESTRICT q, const float* HWY_RESTRICT mean, int n) {
  const FloatTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  FloatVec sum = hn::Zero(d);
  for (int i = 0; i < n; i += lanes) sum = hn::MulAdd(hn::LoadU(d, q + i), hn::LoadU(d, mean + i), sum);
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// The greatest score of kQueries queries, n apart: the box is loaded once for them.
template <int kQueries>
HWY_INLINE float box_score(const float* HWY_RESTRICT q, const float* HWY_RESTRICT box, int n) {
  const FloatTag d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  FloatVec sum[kQueries];
  for (FloatVec& x : sum) x = hn::Zero(d);
  for (int i = 0; i < n; i += lanes) {
    const FloatVec low = hn::LoadU(d, box + i), high = hn::LoadU(d, box + n + i);
    for (int k = 0; k < kQueries; ++k) {
      const FloatVec x = hn::LoadU(d, q + k * n + i);
      sum[k] = hn::Add(sum[k], hn::Max(hn::Mul(x, low), hn::Mul(x, high)));
    }
  }
  float best = -std::numeric_limits<float>::infinity();
  for (const FloatVec& x : sum) {
    const float score = hn::GetLane(hn::SumOfLanes(d, x));
    best = score > best ? score : best;
  }
  return best;
}

HWY_INLINE float code_score(const uint64_t* HWY_RESTRICT query, const uint64_t* HWY_RESTRICT code, int words) {
  int differ = 0;
  for (int w = 0; w < words; ++w) differ += __builtin_popcountll(query[w] ^ code[w]);
  return static_cast<float>(64 * words - 2 * differ);
}

// The greatest of the queries' scores of each block; NaN is never greater. `score` takes `step` queries at a time.
template <typename Score>
HWY_INLINE void best_of_queries(const SummaryScan& s, int32_t begin, int32_t end, int step, const Score& score) {
  for (int32_t b = begin; b < end; ++b) {
    float best = -std::numeric_limits<float>::infinity();
    for (int q = 0; q < s.query_count; q += step) {
      const float x = score(q, s.slots[b] * s.stride);
      best = x > best ? x : best;
    }
    s.scores[b] = best;
  }
}

void scan(const SummaryScan& s, int32_t begin, int32_t end) {
  const int n = s.head_dim;
  switch (s.summary) {
    case BlockSummary::mean:
      return best_of_queries(s, begin, end, 1,
                             [&](int q, int64_t at) HWY_ATTR { return mean_score(s.queries + q * n, s.plane + at, n); });
    case BlockSummary::minmax:
      if (s.query_count % 4 == 0) {  // groups of four are common
        return best_of_queries(s, begin, end, 4,
                               [&](int q, int64_t at) HWY_ATTR { return box_score<4>(s.queries + q * n, s.plane + at, n); });
      }
      return best_of_queries(s, begin, end, 1,
                             [&](int q, int64_t at) HWY_ATTR { return box_score<1>(s.queries + q * n, s.plane + at, n); });
    case BlockSummary::mean_code:
      return best_of_queries(s, begin, end, 1, [&](int q, int64_t at) HWY_ATTR {
        return code_score(s.query_codes + q * s.words, s.codes + at, s.words);
      });
  }
}

}  // namespace fovea::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fovea::cpu {

HWY_EXPORT(scan);

void summary_scan(const SummaryScan& s, int32_t begin, int32_t end) { HWY_DYNAMIC_DISPATCH(scan)(s, begin, end); }

}  // namespace fovea::cpu
#endif  // HWY_ONCE
