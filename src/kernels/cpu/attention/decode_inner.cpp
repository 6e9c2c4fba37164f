#include "kernels/cpu/attention/decode_inner.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/check.h"

#include "kernels/cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention/decode_inner.cpp"
#include <hwy/foreach_target.h>
// foreach_target first: it compiles this file once per instruction set
#include <hwy/highway.h>

#include "kernels/cpu/attention/decode_math_inl.h"
#include "kernels/cpu/elementwise/elementwise_inl.h"
#include "kernels/cpu/elementwise/fp8_inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea::cpu::HWY_NAMESPACE {

// Rows of fp8 to f16 (divided by decode_unit), [keys, d]: of a chunk in the cache (`at`), or side by side (null). Meanwhile asks
// for as many lines of what is read next.
template <typename T>
void widen_rows(const T* from, const int64_t* at, int32_t count, int64_t d, const Ahead<T>& ahead, uint16_t* HWY_RESTRICT to) {
  static_assert(kF16Unit<T> == decode_unit(std::is_same_v<T, E4m3> ? DType::fp8_e4m3 : DType::fp8_e5m2));
  const hn::CappedTag<int16_t, 16> tag;
  const auto lanes = static_cast<int64_t>(hn::Lanes(tag));
  int64_t line = 0;
  for (int32_t t = 0; t < count; ++t) {
    const T* row = from + (at ? at[t] : t * d);
    for (int64_t e = 0; e < d; e += lanes) hn::StoreU(f16_bits(tag, row + e), tag, reinterpret_cast<int16_t*>(to) + t * d + e);
    for (; ahead.line_at && line * 64 < (t + 1) * d; ++line) ahead.touch(line);
  }
}

// The arithmetic of decode_math_inl.h, as TaskRunner wants it.
template <typename Scored, typename Cached = Scored>
struct FloatMath {
  using T = Scored;
  using Stored = Cached;
  static constexpr int kScoreHeads = HWY_NAMESPACE::kScoreHeads;
  static constexpr int kQueryFloats = kMerge;
  static constexpr int kLanes = HWY_NAMESPACE::kLanes;
  static constexpr float kNone = -std::numeric_limits<float>::infinity();

  static constexpr int kStreams = 1;
  static int32_t chunk_keys(const KvView& kv) { return decode_chunk_keys(kv); }
  static bool two_ahead(const KvView&) { return false; }
  static float query_unit(float soft_cap) { return soft_cap > 0 ? 1.0f : kLog2e; }
  static void widen_queries(const uint16_t* q, DType dtype, int64_t n, float* to) { widen(q, dtype, n, to); }
  static void pack_queries(const float* q, float factor, int64_t head_dim, int heads, float* to) {
    HWY_NAMESPACE::pack_queries<T>(q, factor, head_dim, heads, to);
  }
  template <int kHeads, bool kAsk>
  static void score_chunk(const T* k, Keys keys, const float* q, int64_t head_dim, const Ahead<T>& ahead, float* scores) {
    HWY_NAMESPACE::score_chunk<T, kHeads, kAsk>(k, keys, q, head_dim, ahead, scores);
  }
  static void bias_scores(float soft_cap, float slope, const KeyChunk& chunk, float* scores) {
    HWY_NAMESPACE::bias_scores(soft_cap, slope, chunk, scores);
  }
  template <int kHeads>
  static void weigh_scores(int32_t count, float* scores, float* m, float* l, float* rescale) {
    HWY_NAMESPACE::weigh_scores<kHeads>(count, scores, m, l, rescale);
  }
  template <int kHeads, bool kAsk>
  static void add_values(const T* v, Keys keys, const float* weights, const float* rescale, int64_t head_dim, const Ahead<T>& ahead,
                         float* o) {
    add_values_all<T, kHeads, kAsk>(v, keys, weights, rescale, head_dim, ahead, o);
  }
  static void unpack_row(const float* from, int64_t head_dim, float* to) { HWY_NAMESPACE::unpack_row<T>(from, head_dim, to); }
  static float sum_lanes(const float* l) { return hn::GetLane(hn::SumOfLanes(D(), hn::Load(D(), l))); }
  static void widen_rows(const Stored* from, const int64_t* at, int32_t count, int64_t d, const Ahead<Stored>& ahead,
                         uint16_t* to) {
    if constexpr (!std::is_same_v<T, Stored>) HWY_NAMESPACE::widen_rows(from, at, count, d, ahead, to);
  }
};

void AttendBf16(const DecodeTask& t, DecodeScratch& s) { TaskRunner<FloatMath<hwy::bfloat16_t>>(t, s).run(); }
void AttendF16(const DecodeTask& t, DecodeScratch& s) { TaskRunner<FloatMath<hwy::float16_t>>(t, s).run(); }
void AttendF32(const DecodeTask& t, DecodeScratch& s) { TaskRunner<FloatMath<float>>(t, s).run(); }
void AttendE4m3(const DecodeTask& t, DecodeScratch& s) { TaskRunner<FloatMath<hwy::float16_t, E4m3>>(t, s).run(); }
void AttendE5m2(const DecodeTask& t, DecodeScratch& s) { TaskRunner<FloatMath<hwy::float16_t, E5m2>>(t, s).run(); }

// ---- Merge -------------------------------------------------------------------------------------------

void MergePartials(const Partial& first, int64_t count, int64_t stride, int32_t heads, int32_t head_dim, float v_scale,
                   void* HWY_RESTRICT out, DType dtype, float* HWY_RESTRICT lse) {
  const D d;
  HWY_ALIGN float wide[kMaxHeadDim];  // a row, before it is rounded to `dtype`
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  for (int32_t h = 0; h < heads; ++h) {
    float* row = dtype == DType::f32 ? static_cast<float*>(out) + static_cast<int64_t>(h) * head_dim : wide;
    float most = kNone, sum = 0;
    for (int64_t i = 0; i < count; ++i) most = std::max(most, first.m[i * stride + h]);
    for (int64_t i = 0; i < count && most != kNone; ++i) {
      sum += first.l[i * stride + h] * exp2_of(first.m[i * stride + h] - most);
    }
    std::memset(row, 0, head_dim * sizeof(float));
    for (int64_t i = 0; i < count && most != kNone; ++i) {
      const V w = hn::Set(d, exp2_of(first.m[i * stride + h] - most) / sum * v_scale);
      const float* o = first.o + i * stride + static_cast<int64_t>(h) * head_dim;
      for (int32_t e = 0; e < head_dim; e += kLanes) {
        hn::StoreU(hn::MulAdd(w, hn::LoadU(d, o + e), hn::LoadU(d, row + e)), d, row + e);
      }
    }
    if (dtype != DType::f32) narrow(row, dtype, head_dim, static_cast<uint16_t*>(out) + static_cast<int64_t>(h) * head_dim);
    if (lse != nullptr) lse[h] = most == kNone ? kNone : (most + std::log2(sum)) * kLn2;
  }
}

}  // namespace fovea::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fovea::cpu {

HWY_EXPORT(AttendBf16);
HWY_EXPORT(AttendF16);
HWY_EXPORT(AttendF32);
HWY_EXPORT(AttendE4m3);
HWY_EXPORT(AttendE5m2);
HWY_EXPORT(MergePartials);

void attend_task(const DecodeTask& task, DecodeScratch& scratch) {
  switch (task.params->kv.dtype) {
    case DType::bf16:
      return HWY_DYNAMIC_DISPATCH(AttendBf16)(task, scratch);
    case DType::f16:
      return HWY_DYNAMIC_DISPATCH(AttendF16)(task, scratch);
    case DType::f32:
      return HWY_DYNAMIC_DISPATCH(AttendF32)(task, scratch);
    case DType::fp8_e4m3:
      return HWY_DYNAMIC_DISPATCH(AttendE4m3)(task, scratch);
    case DType::fp8_e5m2:
      return HWY_DYNAMIC_DISPATCH(AttendE5m2)(task, scratch);
    default:
      FOVEA_CHECK(false && "decode attention: a dtype that a cache may hold");
  }
}

void merge_partials(const Partial& first, int64_t count, int64_t stride, int32_t heads, int32_t head_dim, float v_scale, void* out,
                    DType dtype, float* lse) {
  HWY_DYNAMIC_DISPATCH(MergePartials)(first, count, stride, heads, head_dim, v_scale, out, dtype, lse);
}

}  // namespace fovea::cpu
#endif
