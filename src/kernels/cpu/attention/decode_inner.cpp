#include "kernels/cpu/attention/decode_inner.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

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

// ---- One task ----------------------------------------------------------------------------------------

// Classic layout: K and V of the chunk, of one KV head, as [keys, d] in scratch.
template <typename T>
void copy_classic(const KvView& kv, const KeyChunk& chunk, int64_t head_offset, T* HWY_RESTRICT k_copy, T* HWY_RESTRICT v_copy) {
  const int64_t d = kv.head_dim, bs = kv.block_size;
  constexpr int64_t kX = 16 / sizeof(T);
  const T* k = static_cast<const T*>(kv.k) + head_offset;
  const T* v = static_cast<const T*>(kv.v) + head_offset;
  for (int32_t t = 0; t < chunk.count; ++t) {
    for (int64_t e = 0; e < d; e += kX) std::memcpy(k_copy + t * d + e, k + chunk.at[t] + e * bs, 16);
  }
  for (int64_t e = 0; e < d; ++e) {
    for (int32_t t = 0; t < chunk.count; ++t) v_copy[t * d + e] = v[chunk.v_at[t] + e * bs];
  }
}

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

// Calls fn(heads as a compile-time constant, first head) with powers of two up to kMost, until all are done.
template <int kMost, typename Fn>
HWY_INLINE void for_head_tiles(int32_t heads, Fn&& fn) {
  int32_t h = 0;
  for (; h + kMost <= heads; h += kMost) fn(std::integral_constant<int, kMost>(), h);
  if constexpr (kMost > 2) {
    if (h + 2 <= heads) fn(std::integral_constant<int, 2>(), h), h += 2;
  }
  if constexpr (kMost > 1) {
    if (h < heads) fn(std::integral_constant<int, 1>(), h);
  }
}

// T: of scores and values; Stored: of the cache.
template <typename T, typename Stored = T>
class TaskRunner {
 public:
  TaskRunner(const DecodeTask& task, DecodeScratch& s)
      : task_(task),
        p_(*task.params),
        s_(s),
        d_(p_.kv.head_dim),
        classic_(p_.kv.layout == KvLayout::classic),
        copied_rows_(classic_ || kWidened),
        kv_share_(p_.num_heads / p_.kv.kv_heads / task.heads_per_group) {}

  // Chunk after chunk, stream after stream; a chunk's memory is prefetched while the one before it computes.
  void run() {
    KeyChunk* chunk = &s_.chunks[0];
    KeyChunk* next = &s_.chunks[1];
    int32_t current = -1, following = next_chunk(*chunk);
    ask_for(first_ahead(*chunk), chunk->count);
    clear_results(0, following);
    while (chunk->count > 0) {
      if (following != current) begin(task_.streams[following]);
      current = following;
      following = next_chunk(*next);
      clear_results(current + 1, following);
      for (int32_t g = 0; g < task_.streams[current].groups; ++g) attend_group(task_.streams[current], *chunk, g, *next);
      if (following != current) finish(task_.streams[current]);
      std::swap(chunk, next);
    }
  }

 private:
  static constexpr bool kWidened = !std::is_same_v<T, Stored>;

  // Fills `chunk` from the first stream that still has keys; the stream, or num_streams (and no keys) at the
  // end.
  int32_t next_chunk(KeyChunk& chunk) {
    for (;;) {
      if (open_) cursor_.fill(chunk);
      if (open_ && chunk.count > 0) return stream_;
      if (stream_ + 1 >= task_.num_streams) break;
      const DecodeStream& s = task_.streams[++stream_];
      cursor_ = KeyCursor(p_, s.keys, s.seq, kv_head(s, 0), s.pos, s.first, s.last);
      open_ = true;
    }
    chunk.count = 0;
    return task_.num_streams;
  }

  int32_t kv_head(const DecodeStream& s, int32_t g) const { return (s.head / task_.heads_per_group + g) / kv_share_; }
  int32_t heads_of(const DecodeStream& s) const { return s.groups * task_.heads_per_group; }

  // Of streams [begin, end): those without a key.
  void clear_results(int32_t begin, int32_t end) const {
    for (int32_t i = begin; i < end; ++i) {
      const DecodeStream& s = task_.streams[i];
      std::memset(s.result.o, 0, heads_of(s) * d_ * sizeof(float));
      std::fill(s.result.m, s.result.m + heads_of(s), -std::numeric_limits<float>::infinity());
      std::fill(s.result.l, s.result.l + heads_of(s), 0.0f);
    }
  }

  void begin(const DecodeStream& s) {
    const int32_t heads = heads_of(s);
    const float* q = static_cast<const float*>(p_.q) + s.q;
    if (p_.dtype != DType::f32) {
      widen(static_cast<const uint16_t*>(p_.q) + s.q, p_.dtype, heads * d_, s_.q_wide);
      q = s_.q_wide;
    }
    for (int32_t g = 0; g < s.groups; ++g) {
      const float k_scale = p_.kv.k_scale != nullptr ? p_.kv.k_scale[kv_head(s, g)] : 1.0f;
      const float factor = p_.scale * k_scale * decode_unit(p_.kv.dtype) * (p_.soft_cap > 0 ? 1.0f : kLog2e);
      const int64_t first = int64_t{g} * task_.heads_per_group;
      for_head_tiles<kScoreHeads>(task_.heads_per_group, [&](auto n, int32_t h) {
        pack_queries<T>(q + (first + h) * d_, factor, d_, n, s_.q + (first + h) * d_ * kMerge);
      });
    }
    std::fill(s_.m, s_.m + heads, -std::numeric_limits<float>::infinity());
    std::fill(s_.l, s_.l + heads * kLanes, 0.0f);
    std::memset(s_.o, 0, heads * d_ * sizeof(float));
  }

  void finish(const DecodeStream& s) const {
    const int32_t heads = heads_of(s);
    for (int32_t h = 0; h < heads; ++h) unpack_row<T>(s_.o + h * d_, d_, s.result.o + h * d_);
    for (int32_t h = 0; h < heads; ++h) {
      s.result.m[h] = s_.m[h];
      s.result.l[h] = hn::GetLane(hn::SumOfLanes(D(), hn::Load(D(), s_.l + h * kLanes)));
    }
  }

  Ahead<Stored> ahead(const Stored* base, const KeyChunk& chunk) const {
    const bool listed = !classic_ && d_ * static_cast<int64_t>(sizeof(Stored)) <= 64 * kDecodeLines;
    return {base, listed && chunk.count > 0 ? chunk.line_at : nullptr};
  }
  // K of the first head group of a chunk.
  Ahead<Stored> first_ahead(const KeyChunk& chunk) const { return ahead(static_cast<const Stored*>(p_.kv.k), chunk); }
  void ask_for(const Ahead<Stored>& rows, int32_t count) const {
    if (rows.line_at == nullptr) return;
    for (int64_t line = 0; line < count * d_ * static_cast<int64_t>(sizeof(Stored)) / 64; ++line) rows.touch(line);
  }

  // Rows that are not scored in place, to scratch as [keys, d].
  void copy_rows(const KeyChunk& chunk, int64_t head_offset, const Ahead<Stored>& values, const Ahead<Stored>& following) const {
    const int64_t behind = kWidened ? kDecodeChunk * d_ * static_cast<int64_t>(sizeof(T)) : 0;  // classic rows of fp8
    auto* k = reinterpret_cast<Stored*>(s_.k_copy + behind);
    auto* v = reinterpret_cast<Stored*>(s_.v_copy + behind);
    if (classic_) copy_classic<Stored>(p_.kv, chunk, head_offset, k, v);
    if constexpr (kWidened) {
      const int64_t* at = classic_ ? nullptr : chunk.at;
      const Stored* keys = classic_ ? k : static_cast<const Stored*>(p_.kv.k) + head_offset;
      const Stored* vals = classic_ ? v : static_cast<const Stored*>(p_.kv.v) + head_offset;
      widen_rows(keys, at, chunk.count, d_, values, reinterpret_cast<uint16_t*>(s_.k_copy));
      widen_rows(vals, at, chunk.count, d_, following, reinterpret_cast<uint16_t*>(s_.v_copy));
    }
  }

  // One chunk of one head group: scores, weights, values. What is read after it is the next group, or the
  // next chunk.
  void attend_group(const DecodeStream& s, const KeyChunk& chunk, int32_t g, const KeyChunk& next) {
    const int32_t heads = task_.heads_per_group, first = g * heads;
    const int64_t offset = g / kv_share_ * p_.kv.head_stride;
    const auto* stored_k = static_cast<const Stored*>(p_.kv.k) + offset;
    const auto* stored_v = static_cast<const Stored*>(p_.kv.v) + offset;
    const Ahead<Stored> values_ahead = ahead(stored_v, chunk);
    const Ahead<Stored> next_ahead = g + 1 == s.groups ? first_ahead(next) : ahead(stored_k + p_.kv.head_stride, chunk);
    const T* k = reinterpret_cast<const T*>(stored_k);
    const T* v = reinterpret_cast<const T*>(stored_v);
    const int64_t* at = chunk.at;
    Ahead<T> values, following;
    if (copied_rows_) {
      copy_rows(chunk, offset, values_ahead, next_ahead);
      k = reinterpret_cast<const T*>(s_.k_copy);
      v = reinterpret_cast<const T*>(s_.v_copy);
      for (int32_t t = 0; t < kDecodeChunk; ++t) copied_[t] = std::min(t, chunk.count - 1) * d_;
      at = copied_;
    } else if constexpr (!kWidened) {
      values = values_ahead, following = next_ahead;
    }
    const Keys keys = {chunk.count, at};
    for_head_tiles<kScoreHeads>(heads, [&](auto n, int32_t h) {
      const bool ask = h == 0 && values.line_at != nullptr;
      const auto score = ask ? &score_chunk<T, n, true> : &score_chunk<T, n, false>;
      score(k, keys, s_.q + (first + h) * d_ * kMerge, d_, values, s_.scores + h * kDecodeChunk);
    });
    for (int32_t h = 0; h < heads && (p_.soft_cap > 0 || p_.alibi_slopes != nullptr); ++h) {
      const float slope = p_.alibi_slopes != nullptr ? p_.alibi_slopes[s.head + first + h] : 0.0f;
      bias_scores(p_.soft_cap, slope, chunk, s_.scores + h * kDecodeChunk);
    }
    for_head_tiles<4>(heads, [&](auto n, int32_t h) {
      float* scores = s_.scores + h * kDecodeChunk;
      weigh_scores<n>(chunk.count, scores, s_.m + first + h, s_.l + (first + h) * kLanes, s_.rescale + h);
      const bool ask = h == 0 && following.line_at != nullptr;
      const auto add = ask ? &add_values_all<T, n, true> : &add_values_all<T, n, false>;
      add(v, keys, scores, s_.rescale + h, d_, following, s_.o + (first + h) * d_);
    });
  }

  const DecodeTask& task_;
  const AttentionParams& p_;
  DecodeScratch& s_;
  const int64_t d_;
  const bool classic_;
  const bool copied_rows_;
  const int32_t kv_share_;  // head groups of one KV head: 1, or its query heads where each has its own list
  KeyCursor cursor_;
  bool open_ = false;
  int32_t stream_ = -1;
  int64_t copied_[kDecodeChunk];
};

void AttendBf16(const DecodeTask& t, DecodeScratch& s) { TaskRunner<hwy::bfloat16_t>(t, s).run(); }
void AttendF16(const DecodeTask& t, DecodeScratch& s) { TaskRunner<hwy::float16_t>(t, s).run(); }
void AttendF32(const DecodeTask& t, DecodeScratch& s) { TaskRunner<float>(t, s).run(); }
void AttendE4m3(const DecodeTask& t, DecodeScratch& s) { TaskRunner<hwy::float16_t, E4m3>(t, s).run(); }
void AttendE5m2(const DecodeTask& t, DecodeScratch& s) { TaskRunner<hwy::float16_t, E5m2>(t, s).run(); }

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
