// One task of decode attention: chunk after chunk, head group after head group. The arithmetic is `Math`'s: of one instruction set
// and one dtype of the cache (decode_math_inl.h, decode_dot_inl.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "kernels/cpu/attention/decode_inner.h"

namespace fovea::cpu {

// The cache lines that are read next, prefetched while this step computes: some between each step's
// multiplications, since a core has few outstanding misses and stalls beyond them; in memory order, which the
// hardware's prefetcher continues; into L2, from where the arithmetic reads without waiting.
template <typename T>
struct Ahead {
  const T* base = nullptr;
  const int64_t* line_at = nullptr;  // KeyChunk::line_at; null: nothing to ask for

  void touch(int64_t line) const { __builtin_prefetch(base + line_at[line], 0, 2); }
};

// Keys of one chunk and KV head: element indices, kDecodeChunk of them.
struct Keys {
  int32_t count;
  const int64_t* at;
};

// Classic layout: K and V of the chunk, of one KV head, as [keys, d] in scratch.
template <typename T>
void copy_classic(const KvView& kv, const KeyChunk& chunk, int64_t head_offset, T* __restrict k_copy, T* __restrict v_copy) {
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

// Calls fn(heads as a compile-time constant, first head) with powers of two up to kMost, until all are done.
template <int kMost, typename Fn>
void for_head_tiles(int32_t heads, Fn&& fn) {
  int32_t h = 0;
  for (; h + kMost <= heads; h += kMost) fn(std::integral_constant<int, kMost>(), h);
  if constexpr (kMost > 2) {
    if (h + 2 <= heads) fn(std::integral_constant<int, 2>(), h), h += 2;
  }
  if constexpr (kMost > 1) {
    if (h < heads) fn(std::integral_constant<int, 1>(), h);
  }
}

// Math has, T being what is scored and Stored what the cache holds:
//   kScoreHeads     most heads that share a read of K
//   kQueryFloats    floats that an element of a packed query takes
//   kLanes          partial sums of weights, a head's
//   chunk_keys      keys of a chunk
//   kStreams        parts of a chunk that are read side by side
//   two_ahead       are rows prefetched two steps ahead (a step: the scores or the values of a chunk and head group), or one?
//   kNone           where a maximum begins
//   query_unit      what scores of q * that are exponents of 2; with a soft cap, what bias_scores() takes
//   widen_queries   16 bits to float32
//   pack_queries, score_chunk, bias_scores, weigh_scores, add_values, unpack_row, sum_lanes: in this order
//   widen_rows      Stored to T, where they differ
template <typename Math>
class TaskRunner {
  using T = typename Math::T;
  using Stored = typename Math::Stored;

 public:
  TaskRunner(const DecodeTask& task, DecodeScratch& s)
      : task_(task),
        p_(*task.params),
        s_(s),
        d_(p_.kv.head_dim),
        classic_(p_.kv.layout == KvLayout::classic),
        copied_rows_(classic_ || kWidened),
        two_ahead_(Math::two_ahead(p_.kv)),
        kv_share_(p_.num_heads / p_.kv.kv_heads / task.heads_per_group) {}

  // Chunk after chunk, stream after stream; a chunk's memory is prefetched while the one before it computes.
  void run() {
    KeyChunk* chunk = &s_.chunks[0];
    KeyChunk* next = &s_.chunks[1];
    int32_t current = -1, following = next_chunk(*chunk);
    ask_for(first_keys(*chunk), chunk->count);
    if (two_ahead_) ask_for(first_values(*chunk), chunk->count);
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
      cursor_ = KeyCursor(p_, s.keys, s.seq, kv_head(s, 0), s.pos, s.first, s.last, Math::chunk_keys(p_.kv), Math::kStreams);
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
      Math::widen_queries(static_cast<const uint16_t*>(p_.q) + s.q, p_.dtype, heads * d_, s_.q_wide);
      q = s_.q_wide;
    }
    for (int32_t g = 0; g < s.groups; ++g) {
      const float k_scale = p_.kv.k_scale != nullptr ? p_.kv.k_scale[kv_head(s, g)] : 1.0f;
      const float factor = p_.scale * k_scale * decode_unit(p_.kv.dtype) * Math::query_unit(p_.soft_cap);
      const int64_t first = int64_t{g} * task_.heads_per_group;
      for_head_tiles<Math::kScoreHeads>(task_.heads_per_group, [&](auto n, int32_t h) {
        Math::pack_queries(q + (first + h) * d_, factor, d_, n, s_.q + (first + h) * d_ * Math::kQueryFloats);
      });
    }
    std::fill(s_.m, s_.m + heads, Math::kNone);
    std::fill(s_.l, s_.l + heads * Math::kLanes, 0.0f);
    std::memset(s_.o, 0, heads * d_ * sizeof(float));
  }

  void finish(const DecodeStream& s) const {
    const int32_t heads = heads_of(s);
    for (int32_t h = 0; h < heads; ++h) Math::unpack_row(s_.o + h * d_, d_, s.result.o + h * d_);
    for (int32_t h = 0; h < heads; ++h) {
      s.result.m[h] = s_.m[h] == Math::kNone ? -std::numeric_limits<float>::infinity() : s_.m[h];
      s.result.l[h] = Math::sum_lanes(s_.l + h * Math::kLanes);
    }
  }

  Ahead<Stored> ahead(const Stored* base, const KeyChunk& chunk) const {
    const bool listed = !classic_ && d_ * static_cast<int64_t>(sizeof(Stored)) <= 64 * kDecodeLines;
    return {base, listed && chunk.count > 0 ? chunk.line_at : nullptr};
  }
  // Of the first head group of a chunk.
  Ahead<Stored> first_keys(const KeyChunk& chunk) const { return ahead(static_cast<const Stored*>(p_.kv.k), chunk); }
  Ahead<Stored> first_values(const KeyChunk& chunk) const { return ahead(static_cast<const Stored*>(p_.kv.v), chunk); }
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
      Math::widen_rows(keys, at, chunk.count, d_, values, reinterpret_cast<uint16_t*>(s_.k_copy));
      Math::widen_rows(vals, at, chunk.count, d_, following, reinterpret_cast<uint16_t*>(s_.v_copy));
    }
  }

  // One chunk of one head group: scores, weights, values. What is read after it is the next group, or the
  // next chunk.
  void attend_group(const DecodeStream& s, const KeyChunk& chunk, int32_t g, const KeyChunk& next) {
    const int32_t heads = task_.heads_per_group, first = g * heads;
    const int64_t offset = g / kv_share_ * p_.kv.head_stride;
    const auto* stored_k = static_cast<const Stored*>(p_.kv.k) + offset;
    const auto* stored_v = static_cast<const Stored*>(p_.kv.v) + offset;
    const bool last = g + 1 == s.groups;
    const Ahead<Stored> next_keys = last ? first_keys(next) : ahead(stored_k + p_.kv.head_stride, chunk);
    const Ahead<Stored> next_values = last ? first_values(next) : ahead(stored_v + p_.kv.head_stride, chunk);
    const Ahead<Stored> during_scores = two_ahead_ ? next_keys : ahead(stored_v, chunk);
    const Ahead<Stored> during_values = two_ahead_ ? next_values : next_keys;
    const T* k = reinterpret_cast<const T*>(stored_k);
    const T* v = reinterpret_cast<const T*>(stored_v);
    const int64_t* at = chunk.at;
    Ahead<T> scores_ask, values_ask;  // of rows that are read in place
    if (copied_rows_) {
      copy_rows(chunk, offset, during_scores, during_values);
      k = reinterpret_cast<const T*>(s_.k_copy);
      v = reinterpret_cast<const T*>(s_.v_copy);
      for (int32_t t = 0; t < kDecodeChunk; ++t) copied_[t] = std::min(t, chunk.count - 1) * d_;
      at = copied_;
    } else if constexpr (!kWidened) {
      scores_ask = during_scores, values_ask = during_values;
    }
    const Keys keys = {chunk.count, at};
    for_head_tiles<Math::kScoreHeads>(heads, [&](auto n, int32_t h) {
      const bool ask = h == 0 && scores_ask.line_at != nullptr;
      const auto score = ask ? &Math::template score_chunk<n, true> : &Math::template score_chunk<n, false>;
      score(k, keys, s_.q + (first + h) * d_ * Math::kQueryFloats, d_, scores_ask, s_.scores + h * kDecodeChunk);
    });
    for (int32_t h = 0; h < heads && (p_.soft_cap > 0 || p_.alibi_slopes != nullptr); ++h) {
      const float slope = p_.alibi_slopes != nullptr ? p_.alibi_slopes[s.head + first + h] : 0.0f;
      Math::bias_scores(p_.soft_cap, slope, chunk, s_.scores + h * kDecodeChunk);
    }
    for_head_tiles<4>(heads, [&](auto n, int32_t h) {
      float* scores = s_.scores + h * kDecodeChunk;
      Math::template weigh_scores<n>(chunk.count, scores, s_.m + first + h, s_.l + (first + h) * Math::kLanes, s_.rescale + h);
      const bool ask = h == 0 && values_ask.line_at != nullptr;
      const auto add = ask ? &Math::template add_values<n, true> : &Math::template add_values<n, false>;
      add(v, keys, scores, s_.rescale + h, d_, values_ask, s_.o + (first + h) * d_);
    });
  }

  const DecodeTask& task_;
  const AttentionParams& p_;
  DecodeScratch& s_;
  const int64_t d_;
  const bool classic_;
  const bool copied_rows_;
  const bool two_ahead_;
  const int32_t kv_share_;  // head groups of one KV head: 1, or its query heads where each has its own list
  KeyCursor cursor_;
  bool open_ = false;
  int32_t stream_ = -1;
  int64_t copied_[kDecodeChunk];
};

}  // namespace fovea::cpu
