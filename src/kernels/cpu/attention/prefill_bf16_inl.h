// The softmax that the bf16 engines share (AMX tiles, dot products). Scores lie keys down, lanes across, `kStride` lanes apart, in
// units of log2; a lane's arithmetic does not know its neighbours. Included between the attributes that allow AVX-512.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numbers>

#include "kernels/cpu/attention/prefill_plan.h"

namespace fovea::cpu {
namespace {

constexpr float kNoMax = -3e38f;  // of a lane that has seen no key: finite, so that differences are not NaN
// A maximum is raised only where it grew by more than this: weights up to 2^8 lose nothing in floating point,
// and o is rescaled seldom.
constexpr float kSlack = 8.0f;

// 2^x, relative error 3e-6, for any x; 0 for -inf.
inline __m512 exp2_ps(__m512 x) {
  const __m512 f = _mm512_reduce_ps(x, 0x09);  // x - floor(x); 0 for an infinity
  __m512 y = _mm512_set1_ps(0.013426710f);
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.052242432f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.24128023f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.69304484f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(y, x);  // y * 2^floor(x)
}

inline __m512 tanh_ps(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.0f);
  const __m512 e = exp2_ps(_mm512_mul_ps(_mm512_abs_ps(x), _mm512_set1_ps(-2.0f * std::numbers::log2e_v<float>)));
  const __m512 t = _mm512_div_ps(_mm512_sub_ps(one, e), _mm512_add_ps(one, e));
  const __m512i sign = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(INT32_MIN));
  return _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(t), sign));
}

// Two weights (>= 0) a lane, rounded to bf16 (to nearest, ties up): the first in the low half.
inline __m512i pack_pair(__m512 first, __m512 second) {
  const __m512i half = _mm512_set1_epi32(0x8000), high = _mm512_set1_epi32(static_cast<int32_t>(0xffff0000u));
  const __m512i lo = _mm512_srli_epi32(_mm512_add_epi32(_mm512_castps_si512(first), half), 16);
  const __m512i hi = _mm512_add_epi32(_mm512_castps_si512(second), half);
  return _mm512_ternarylogic_epi32(hi, high, lo, 0xea);  // (hi & high) | lo
}

// Soft cap, ALiBi and masks of keys [from, to), in that order, for the panel's first `kVecs` vectors of lanes.
template <int kVecs, int32_t kStride>
void shape_scores(const AttentionParams& p, const LaneView& lanes, const float* k_pos, int32_t first_lane, int64_t base,
                  int32_t tile_keys, int32_t from, int32_t to, float* s) {
  const __m512 cap = _mm512_set1_ps(p.soft_cap * std::numbers::log2e_v<float>);
  const __m512 none = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  for (int32_t c = 0; c < 16 * kVecs; c += 16) {
    const int32_t lane = first_lane + c;
    const __m512 pos = _mm512_loadu_ps(lanes.pos + lane), slope = _mm512_loadu_ps(lanes.slope + lane);
    alignas(64) int32_t lo[16], hi[16];
    for (int32_t i = 0; i < 16; ++i) {
      lo[i] = static_cast<int32_t>(std::clamp<int64_t>(lanes.lo[lane + i] - base, 0, tile_keys));
      hi[i] = static_cast<int32_t>(std::clamp<int64_t>(lanes.hi[lane + i] - base, 0, tile_keys));
    }
    const __m512i lo_v = _mm512_load_si512(lo), hi_v = _mm512_load_si512(hi);
    for (int32_t j = from; j < to; ++j) {
      float* at = s + j * kStride + c;
      __m512 x = _mm512_load_ps(at);
      if (p.soft_cap > 0) x = _mm512_mul_ps(cap, tanh_ps(x));
      if (p.alibi_slopes) x = _mm512_fmadd_ps(slope, _mm512_sub_ps(_mm512_set1_ps(k_pos[j]), pos), x);
      const __m512i jv = _mm512_set1_epi32(j);
      const __mmask16 seen = _mm512_cmple_epi32_mask(lo_v, jv) & _mm512_cmplt_epi32_mask(jv, hi_v);
      _mm512_store_ps(at, _mm512_mask_blend_ps(seen, none, x));
    }
  }
}

// Raises the maxima m by keys [j0, j1), an even number of them, and rescales l and o [dim, kStride] where one was.
template <int kVecs, int32_t kStride>
void raise_maximum(const float* s, int32_t j0, int32_t j1, int32_t dim, float* m, float* l, float* o) {
  __m512 top[kVecs], odd[kVecs], rescale[kVecs];
  for (int c = 0; c < kVecs; ++c) top[c] = odd[c] = _mm512_load_ps(s + j0 * kStride + 16 * c);
  for (int32_t j = j0; j < j1; j += 2) {
    for (int c = 0; c < kVecs; ++c) {
      top[c] = _mm512_max_ps(top[c], _mm512_load_ps(s + j * kStride + 16 * c));
      odd[c] = _mm512_max_ps(odd[c], _mm512_load_ps(s + (j + 1) * kStride + 16 * c));
    }
  }
  uint32_t grew = 0;
  for (int c = 0; c < kVecs; ++c) {
    top[c] = _mm512_max_ps(top[c], odd[c]);
    const __m512 old = _mm512_load_ps(m + 16 * c);
    const __mmask16 up = _mm512_cmp_ps_mask(top[c], _mm512_add_ps(old, _mm512_set1_ps(kSlack)), _CMP_GT_OQ);
    grew |= up;
    rescale[c] = _mm512_mask_blend_ps(up, _mm512_set1_ps(1.0f), exp2_ps(_mm512_sub_ps(old, top[c])));
    _mm512_store_ps(m + 16 * c, _mm512_mask_blend_ps(up, old, top[c]));
    _mm512_store_ps(l + 16 * c, _mm512_mul_ps(rescale[c], _mm512_load_ps(l + 16 * c)));
  }
  if (grew == 0) return;
  for (int32_t i = 0; i < dim; ++i, o += kStride) {
    for (int c = 0; c < kVecs; ++c) _mm512_store_ps(o + 16 * c, _mm512_mul_ps(_mm512_load_ps(o + 16 * c), rescale[c]));
  }
}

}  // namespace
}  // namespace fovea::cpu
