// The arithmetic of decode attention for one instruction set: widening, scores, weights, values. Included
// once per target.
#if defined(FOVEA_KERNELS_CPU_DECODE_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_KERNELS_CPU_DECODE_MATH_INL_H_
#undef FOVEA_KERNELS_CPU_DECODE_MATH_INL_H_
#else
#define FOVEA_KERNELS_CPU_DECODE_MATH_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>
// after highway.h: it needs the target
#include <hwy/contrib/math/math-inl.h>

#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/cpu/attention/decode_task.h"

HWY_BEFORE_NAMESPACE();
namespace fovea::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));
constexpr int kPair = 2 * kLanes;  // elements of one step along d: a whole vector of 16-bit values
constexpr float kLog2e = 1.44269504f;
constexpr float kLn2 = 0.693147181f;

// Vectors of V that one pass over the keys accumulates per head: 4 heads x 4 of them fill 16 of AVX-512's 32
// registers, 4 x 2 fill 8 of the 16 elsewhere.
constexpr int kSlabPairs = kLanes >= 16 ? 2 : 1;

// ---- Elements to float32 ------------------------------------------------------------------------------

// kPair elements as two vectors. bf16: the even elements, then the odd ones (a shift and a mask, no shuffle);
// q is laid out likewise, and out comes back from that order at the end.
HWY_INLINE void load_pair(D d, const hwy::bfloat16_t* p, V& a, V& b) {
  const hn::RebindToUnsigned<D> du;
  const auto both = hn::LoadU(du, reinterpret_cast<const uint32_t*>(p));
  a = hn::BitCast(d, hn::ShiftLeft<16>(both));
  b = hn::BitCast(d, hn::And(both, hn::Set(du, 0xffff0000u)));
}
HWY_INLINE void load_pair(D d, const hwy::float16_t* p, V& a, V& b) {
  const hn::Rebind<hwy::float16_t, D> dh;
  a = hn::PromoteTo(d, hn::LoadU(dh, p));
  b = hn::PromoteTo(d, hn::LoadU(dh, p + kLanes));
}
HWY_INLINE void load_pair(D d, const float* p, V& a, V& b) {
  a = hn::LoadU(d, p);
  b = hn::LoadU(d, p + kLanes);
}
HWY_INLINE V widen(D, V v) { return v; }
HWY_INLINE V widen(D d, hn::Vec<hn::Rebind<hwy::float16_t, D>> v) { return hn::PromoteTo(d, v); }

// The last kLanes elements, where d is an odd multiple of kLanes (80 with 16 lanes).
template <typename T>
HWY_INLINE V load_one(D d, const T* p) {
  if constexpr (sizeof(T) == 4) {
    return hn::LoadU(d, p);
  } else {
    return hn::PromoteTo(d, hn::LoadU(hn::Rebind<T, D>(), p));
  }
}

// kStep elements of each of kMerge keys as two vectors: with 8 lanes and more, one key in the lower halves,
// another in the upper. Two keys to an accumulator halve the horizontal sums, for one insertion more.
constexpr int kMerge = kLanes >= 8 ? 2 : 1;
constexpr int kStep = kPair / kMerge;
template <typename T>
HWY_INLINE void load_keys(D d, const T* first, [[maybe_unused]] const T* second, V& a, V& b) {
  if constexpr (kMerge == 1) {
    load_pair(d, first, a, b);
  } else {
#if HWY_TARGET != HWY_SCALAR
    if constexpr (std::is_same_v<T, hwy::bfloat16_t>) {
      const hn::RebindToUnsigned<D> du;
      const hn::Half<decltype(du)> half;
      const auto both = hn::Combine(du, hn::LoadU(half, reinterpret_cast<const uint32_t*>(second)),
                                    hn::LoadU(half, reinterpret_cast<const uint32_t*>(first)));
      a = hn::BitCast(d, hn::ShiftLeft<16>(both));
      b = hn::BitCast(d, hn::And(both, hn::Set(du, 0xffff0000u)));
    } else {
      const hn::Rebind<T, D> dt;
      const hn::Half<decltype(dt)> half;
      a = widen(d, hn::Combine(dt, hn::LoadU(half, second), hn::LoadU(half, first)));
      b = widen(d, hn::Combine(dt, hn::LoadU(half, second + kLanes / 2), hn::LoadU(half, first + kLanes / 2)));
    }
#endif
  }
}

// kStep elements of q in the order that load_keys() gives a key's, each half vector twice where keys are
// merged.
template <typename T>
HWY_INLINE void load_query(D d, const float* q, V& a, V& b) {
  constexpr bool kEvenOdd = std::is_same_v<T, hwy::bfloat16_t>;
  if constexpr (kMerge == 1) {
    if constexpr (kEvenOdd) {
      hn::LoadInterleaved2(d, q, a, b);
    } else {
      load_pair(d, q, a, b);
    }
  } else {
#if HWY_TARGET != HWY_SCALAR
    const V v = hn::LoadU(d, q);
    a = kEvenOdd ? hn::ConcatEven(d, v, v) : hn::ConcatLowerLower(d, v, v);
    b = kEvenOdd ? hn::ConcatOdd(d, v, v) : hn::ConcatUpperUpper(d, v, v);
#endif
  }
}

// The queries of a tile of heads, step by step along d, all heads of a step side by side: [d / kStep, heads,
// kPair].
template <typename T>
void pack_queries(const float* q, float factor, int64_t head_dim, int heads, float* HWY_RESTRICT to) {
  const D d;
  for (int64_t e = 0; e < head_dim; e += kStep) {
    for (int h = 0; h < heads; ++h, to += kPair) {
      V a, b;
      load_query<T>(d, q + h * head_dim + e, a, b);
      hn::Store(hn::Mul(a, hn::Set(d, factor)), d, to);
      hn::Store(hn::Mul(b, hn::Set(d, factor)), d, to + kLanes);
    }
  }
}

// A row of out from the order in which load_pair() gives a value's elements.
template <typename T>
void unpack_row(const float* from, int64_t head_dim, float* to) {
  const D d;
  int64_t i = 0;
  if constexpr (std::is_same_v<T, hwy::bfloat16_t>) {
    for (; i + kPair <= head_dim; i += kPair) {
      hn::StoreInterleaved2(hn::LoadU(d, from + i), hn::LoadU(d, from + i + kLanes), d, to + i);
    }
  }
  if (i < head_dim) std::memcpy(to + i, from + i, (head_dim - i) * sizeof(float));
}

// ---- Scores ------------------------------------------------------------------------------------------

// A tile is kSums accumulators, of kMerge keys each; at most kScoreHeads heads share it.
constexpr int kSums = kLanes >= 4 ? kLanes : 4;
constexpr int kScoreHeads = kSums / 4;

// Keys of accumulator j of a head: first_key(j), and with two of them first_key(j) + 4; so the sums come out
// in order.
constexpr int first_key(int j) { return j / 4 * 4 * kMerge + j % 4; }

#if HWY_TARGET == HWY_SCALAR
template <int kKeys>
HWY_INLINE void store_sums(const V* HWY_RESTRICT v, float* HWY_RESTRICT scores) {
  for (int j = 0; j < kSums; ++j) scores[j / kKeys * kDecodeChunk + j % kKeys] = hn::GetLane(v[j]);
}
#else
// Block by block the sums of four accumulators.
HWY_INLINE V sums_of_4(const V* HWY_RESTRICT v) {
  const D d;
  const hn::Repartition<double, D> dd;
  const auto ab = hn::BitCast(dd, hn::Add(hn::InterleaveLower(d, v[0], v[1]), hn::InterleaveUpper(d, v[0], v[1])));
  const auto ce = hn::BitCast(dd, hn::Add(hn::InterleaveLower(d, v[2], v[3]), hn::InterleaveUpper(d, v[2], v[3])));
  return hn::Add(hn::BitCast(d, hn::InterleaveLower(dd, ab, ce)), hn::BitCast(d, hn::InterleaveUpper(dd, ab, ce)));
}

// The horizontal sums of a tile: kSums * kMerge scores, kKeys of each head, heads kDecodeChunk apart.
template <int kKeys>
HWY_INLINE void store_sums(const V* HWY_RESTRICT v, float* HWY_RESTRICT scores) {
  const D d;
  auto at = [&](int score) { return scores + score / kKeys * kDecodeChunk + score % kKeys; };
#if HWY_TARGET <= HWY_AVX3
  HWY_UNROLL(2)
  for (int j = 0; j < kSums; j += 8) {  // a key is two blocks here; Highway has no shuffle of blocks of two vectors
    const V x = sums_of_4(v + j), y = sums_of_4(v + j + 4);
    const V sums = hn::Add(V{_mm512_shuffle_f32x4(x.raw, y.raw, 0x88)}, V{_mm512_shuffle_f32x4(x.raw, y.raw, 0xdd)});
    if constexpr (kKeys >= kLanes) {
      hn::StoreU(sums, d, at(2 * j));
    } else {
      const hn::Half<D> half;
      hn::StoreU(hn::LowerHalf(half, sums), half, at(2 * j));
      hn::StoreU(hn::UpperHalf(half, sums), half, at(2 * j + 8));
    }
  }
#else
  HWY_UNROLL(2)
  for (int j = 0; j < kSums; j += 4) hn::StoreU(sums_of_4(v + j), d, at(j * kMerge));
#endif
}
#endif

// scores[h][t] = q[h] . k[t] for kHeads heads and every key, a tile at a time: a key's elements are widened
// once for all heads. Meanwhile asks for what `ahead` says (kAsk).
template <typename T, int kHeads, bool kAsk>
HWY_NOINLINE void score_chunk(const T* HWY_RESTRICT k, Keys keys, const float* HWY_RESTRICT q, int64_t head_dim,
                              const Ahead<T>& ahead, float* HWY_RESTRICT scores) {
  constexpr int kEach = kSums / kHeads;  // accumulators of a head
  constexpr int kKeys = kEach * kMerge;
  static_assert(kKeys <= kDecodeTile);
  constexpr int kLines = kKeys * kStep * sizeof(T) / 64;  // a step reads as many
  const D d;
  int64_t line = 0;
  for (int32_t t = 0; t < keys.count; t += kKeys) {
    const T* rows[kKeys];
    HWY_UNROLL(32)
    for (int i = 0; i < kKeys; ++i) rows[i] = k + keys.at[t + i];
    V acc[kSums];
    HWY_UNROLL(16)
    for (int j = 0; j < kSums; ++j) acc[j] = hn::Zero(d);
    const float* HWY_RESTRICT qe = q;
    for (int64_t e = 0; e < head_dim; e += kStep, qe += kHeads * kPair) {
      if constexpr (kAsk) {
        HWY_UNROLL(16)
        for (int i = 0; i < kLines; ++i) ahead.touch(line + i);
        line += kLines;
      }
      HWY_UNROLL(16)
      for (int j = 0; j < kEach; ++j) {
        V a, b;
        load_keys(d, rows[first_key(j)] + e, rows[first_key(j) + (kMerge - 1) * 4] + e, a, b);
        HWY_UNROLL(4)
        for (int h = 0; h < kHeads; ++h) {
          V& sum = acc[h * kEach + j];
          sum = hn::MulAdd(a, hn::Load(d, qe + h * kPair), sum);
          sum = hn::MulAdd(b, hn::Load(d, qe + h * kPair + kLanes), sum);
        }
      }
    }
    store_sums<kKeys>(acc, scores + t);
  }
}

// ---- Softmax -----------------------------------------------------------------------------------------

// 2^x for x <= kSlack, relative error 1e-7; 0 below 2^-126.
HWY_INLINE V exp2_of(V x) {
  const D d;
  const hn::RebindToSigned<D> di;
  const V magic = hn::Set(d, 0x1.8p23f);  // adding it rounds x, and leaves the integer in the low bits
  const V shifted = hn::Add(x, magic);
  const V f = hn::Sub(x, hn::Sub(shifted, magic));
  V y = hn::Set(d, 0x1.444p-13f);
  y = hn::MulAdd(y, f, hn::Set(d, 0x1.5f48cp-10f));
  y = hn::MulAdd(y, f, hn::Set(d, 0x1.3b2a1cp-7f));
  y = hn::MulAdd(y, f, hn::Set(d, 0x1.c6aeccp-5f));
  y = hn::MulAdd(y, f, hn::Set(d, 0x1.ebfbe0p-3f));
  y = hn::MulAdd(y, f, hn::Set(d, 0x1.62e430p-1f));
  y = hn::MulAdd(y, f, hn::Set(d, 1.0f));
  const auto bits = hn::Add(hn::BitCast(di, y), hn::ShiftLeft<23>(hn::BitCast(di, shifted)));
  return hn::IfThenElseZero(hn::Ge(x, hn::Set(d, -126.0f)), hn::BitCast(d, bits));
}
HWY_INLINE float exp2_of(float x) { return hn::GetLane(exp2_of(hn::Set(D(), x))); }

// Soft cap and ALiBi, where there are any: scores become exponents of 2.
inline HWY_NOINLINE void bias_scores(float soft_cap, float slope, const KeyChunk& chunk, float* HWY_RESTRICT scores) {
  const D d;
  for (int32_t t = 0; t < chunk.count; t += kLanes) {
    V x = hn::Load(d, scores + t);
    if (soft_cap > 0) {
      x = hn::Mul(hn::Tanh(d, hn::Div(x, hn::Set(d, soft_cap))), hn::Set(d, soft_cap * kLog2e));
    }
    if (slope != 0) x = hn::MulAdd(hn::LoadU(d, chunk.age + t), hn::Set(d, slope * kLog2e), x);
    hn::Store(x, d, scores + t);
  }
}

// m follows the maximum only when a score exceeds it by more than this (a factor of 256 in the weight:
// nothing near overflow): most chunks then need no horizontal maximum and no wait for one.
constexpr float kSlack = 8.0f;

// Scores to weights 2^(x - m), for several heads at once: each is a chain of steps that alone would wait for
// itself. `rescale` is what earlier sums are to be multiplied with; l holds a sum per lane.
template <int kHeads>
HWY_NOINLINE void weigh_scores(int32_t count, float* HWY_RESTRICT scores, float* HWY_RESTRICT m, float* HWY_RESTRICT l,
                               float* HWY_RESTRICT rescale) {
  const D d;
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  V most[kHeads], excess = hn::Set(d, kNone);
  HWY_UNROLL(4)
  for (int h = 0; h < kHeads; ++h) {
    float* row = scores + h * kDecodeChunk;
    for (int32_t t = count; t % kLanes != 0; ++t) row[t] = kNone;
    most[h] = hn::Load(d, row);
    for (int32_t t = kLanes; t < count; t += kLanes) most[h] = hn::Max(most[h], hn::Load(d, row + t));
    excess = hn::Max(excess, hn::Sub(most[h], hn::Set(d, m[h])));
    rescale[h] = 1.0f;
  }
  if (!hn::AllTrue(d, hn::Le(excess, hn::Set(d, kSlack)))) {
    for (int h = 0; h < kHeads; ++h) {
      const V m_new = hn::Max(hn::MaxOfLanes(d, most[h]), hn::Set(d, m[h]));
      rescale[h] = hn::GetLane(exp2_of(hn::Sub(hn::Set(d, m[h]), m_new)));
      m[h] = hn::GetLane(m_new);
    }
  }
  HWY_UNROLL(4)
  for (int h = 0; h < kHeads; ++h) {
    float* row = scores + h * kDecodeChunk;
    V sum = hn::Mul(hn::Load(d, l + h * kLanes), hn::Set(d, rescale[h]));
    for (int32_t t = 0; t < count; t += kLanes) {
      const V w = exp2_of(hn::Sub(hn::Load(d, row + t), hn::Set(d, m[h])));
      sum = hn::Add(sum, w);
      hn::Store(w, d, row + t);
    }
    hn::Store(sum, d, l + h * kLanes);
  }
}

// ---- Values ------------------------------------------------------------------------------------------

// o[h][e..] = o * rescale + sum over keys of weight * v, for kHeads heads and kVectors vectors along d, from
// element `element` of a row on (v and o point there). Meanwhile asks for as large a part of what `ahead`
// says (kAsk).
template <typename T, int kHeads, int kVectors, bool kAsk>
HWY_NOINLINE void add_values(const T* HWY_RESTRICT v, Keys keys, const float* HWY_RESTRICT weights,
                             const float* HWY_RESTRICT rescale, int64_t head_dim, const Ahead<T>& ahead, int64_t element,
                             float* HWY_RESTRICT o) {
  const D d;
  V acc[kHeads * kVectors];
  HWY_UNROLL(4)
  for (int h = 0; h < kHeads; ++h) {
    HWY_UNROLL(4)
    for (int j = 0; j < kVectors; ++j) {
      acc[h * kVectors + j] = hn::Mul(hn::Load(d, o + h * head_dim + j * kLanes), hn::Set(d, rescale[h]));
    }
  }
  constexpr int kBytes = kVectors * kLanes * sizeof(T);  // of a key
  int64_t line = element * keys.count * static_cast<int64_t>(sizeof(T)) / 64;
  for (int32_t t = 0; t < keys.count; ++t) {
    if constexpr (kAsk && kBytes >= 64) {
      for (int i = 0; i < kBytes / 64; ++i) ahead.touch(line++);
    } else if (kAsk && t % (64 / kBytes) == 0) {
      ahead.touch(line++);
    }
    const T* row = v + keys.at[t];
    V x[kVectors];
    if constexpr (kVectors == 1) {
      x[0] = load_one(d, row);
    } else {
      HWY_UNROLL(2)
      for (int j = 0; j < kVectors; j += 2) load_pair(d, row + j * kLanes, x[j], x[j + 1]);
    }
    HWY_UNROLL(4)
    for (int h = 0; h < kHeads; ++h) {
      const V w = hn::Set(d, weights[h * kDecodeChunk + t]);
      HWY_UNROLL(4)
      for (int j = 0; j < kVectors; ++j) acc[h * kVectors + j] = hn::MulAdd(w, x[j], acc[h * kVectors + j]);
    }
  }
  HWY_UNROLL(4)
  for (int h = 0; h < kHeads; ++h) {
    HWY_UNROLL(4)
    for (int j = 0; j < kVectors; ++j) hn::Store(acc[h * kVectors + j], d, o + h * head_dim + j * kLanes);
  }
}

template <typename T, int kHeads, bool kAsk>
void add_values_all(const T* v, Keys keys, const float* weights, const float* rescale, int64_t head_dim, const Ahead<T>& ahead,
                    float* o) {
  int64_t e = 0;
  if constexpr (kSlabPairs == 2) {
    for (; e + 2 * kPair <= head_dim; e += 2 * kPair) {
      add_values<T, kHeads, 4, kAsk>(v + e, keys, weights, rescale, head_dim, ahead, e, o + e);
    }
  }
  for (; e + kPair <= head_dim; e += kPair) {
    add_values<T, kHeads, 2, kAsk>(v + e, keys, weights, rescale, head_dim, ahead, e, o + e);
  }
  if (e < head_dim) add_values<T, kHeads, 1, kAsk>(v + e, keys, weights, rescale, head_dim, ahead, e, o + e);
}

}  // namespace fovea::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
