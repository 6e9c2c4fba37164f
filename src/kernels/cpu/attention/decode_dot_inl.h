// Decode attention over a bf16 cache by AVX-512 bf16 dot products, included once with the instruction (decode_dot.cpp) and once with
// its emulation (tests).
//
// A product of pairs does twice the work of a multiply-add and widens nothing. Pairs of K are neighbours as the cache holds them;
// those of V are two keys, interleaved as they are read; those of the weights are neighbours once weights are rounded.
#include <hwy/base.h>
#include <immintrin.h>

#include <algorithm>
#include <numbers>

#include "kernels/common/convert.h"
#include "kernels/cpu/attention/decode_task.h"
#include "kernels/cpu/attention/prefill_plan.h"

// The attributes and not the unit's flags, as in prefill_dot_inl.h.
#ifdef FOVEA_DOT_EMULATE
HWY_PUSH_ATTRIBUTES("avx2,fma,avx512f,avx512bw,avx512cd,avx512dq,avx512vl")
#else
HWY_PUSH_ATTRIBUTES("avx2,fma,avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512bf16")
#endif
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push  // as in prefill_amx_inl.h
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include "kernels/cpu/attention/dot_pairs_inl.h"
#include "kernels/cpu/attention/prefill_amx_rows.h"
#include "kernels/cpu/attention/prefill_bf16_inl.h"

namespace fovea::cpu {
namespace {

constexpr int kSums = 16;  // accumulators: half of the registers

// 32 numbers to bf16, in order.
inline __m512i round_pairs(__m512 first, __m512 second) {
#ifndef FOVEA_DOT_EMULATE
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
#else
  return _mm512_inserti64x4(_mm512_castsi256_si512(round_bf16(first)), round_bf16(second), 1);
#endif
}

// Prefetches stay where they are, ahead of a step's loads: among them, where the compiler would put them, they made reading from memory
// a quarter slower (Zen 4).
inline void ask(const Ahead<uint16_t>& ahead, int64_t line) {
  ahead.touch(line);
  asm volatile("" ::: "memory");
}

inline __m256i load16(const uint16_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

// 16 elements of each of two rows.
inline __m512i load_two(const uint16_t* first, const uint16_t* second) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(load16(first)), load16(second), 1);
}

// ---- Scores --------------------------------------------------------------------------------------------------------

inline __m512d fold_two(__m512 a, __m512 b) {
  return _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)));
}

// Block by block of 128 bits the sums of four accumulators.
inline __m512 sums_of_4(const __m512* v) {
  const __m512d ab = fold_two(v[0], v[1]), cd = fold_two(v[2], v[3]);
  return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)), _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)));
}

// The horizontal sums of a tile, two scores an accumulator: kKeys of each head, heads kDecodeChunk apart.
template <int kKeys>
inline void store_sums(const __m512* v, float* scores) {
  for (int j = 0; j < kSums; j += 8) {
    const __m512 x = sums_of_4(v + j), y = sums_of_4(v + j + 4);
    const __m512 sums = _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xdd));
    const auto at = [&](int score) { return scores + score / kKeys * kDecodeChunk + score % kKeys; };
    _mm256_storeu_ps(at(2 * j), _mm512_castps512_ps256(sums));
    _mm256_storeu_ps(at(2 * j + 8), _mm512_extractf32x8_ps(sums, 1));
  }
}

// Accumulator j of a head has key first_key(j) in its lower half and the fourth after it in its upper, so that sums come out in order.
constexpr int first_key(int j) { return j / 4 * 8 + j % 4; }

// ---- Values --------------------------------------------------------------------------------------------------------

// What stands for the key after the last of an odd number.
alignas(64) constexpr uint16_t kNoKey[kMaxHeadDim] = {};

// Two keys' values, 16 * kVectors elements, as pairs. Of 32 elements the first vector has those whose number has no 4 in it.
template <int kVectors>
inline void load_value_pairs(const uint16_t* a, const uint16_t* b, __m512i* to) {
  if constexpr (kVectors == 1) {
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4,
                                           19, 3, 18, 2, 17, 1, 16, 0);
    to[0] = _mm512_permutexvar_epi16(order, load_two(a, b));
  } else {
    for (int j = 0; j < kVectors; j += 2) {
      const __m512i x = _mm512_loadu_si512(a + 16 * j), y = _mm512_loadu_si512(b + 16 * j);
      to[j] = _mm512_unpacklo_epi16(x, y);
      to[j + 1] = _mm512_unpackhi_epi16(x, y);
    }
  }
}

// o[h] = o * rescale + sum over keys of weight * v, for kHeads heads and 16 * kVectors elements of a row, which v and o point to.
// Meanwhile asks for kLines of the lines that `ahead` lists, from `line` on, with every two keys.
template <int kHeads, int kVectors, int kLines>
HWY_NOINLINE void add_slab(const uint16_t* v, Keys keys, const float* weights, const float* rescale, int64_t head_dim,
                           const Ahead<uint16_t>& ahead, int64_t line, float* o) {
  __m512 acc[kHeads][kVectors];
  HWY_UNROLL(4)  // else they pass through memory
  for (int h = 0; h < kHeads; ++h) {
    HWY_UNROLL(8)
    for (int j = 0; j < kVectors; ++j) {
      acc[h][j] = _mm512_mul_ps(_mm512_load_ps(o + h * head_dim + 16 * j), _mm512_set1_ps(rescale[h]));
    }
  }
  for (int32_t t = 0; t < keys.count; t += 2) {
    for (int i = 0; i < kLines; ++i) ask(ahead, line++);
    __m512i x[kVectors];
    load_value_pairs<kVectors>(v + keys.at[t], t + 1 < keys.count ? v + keys.at[t + 1] : kNoKey, x);
    for (int h = 0; h < kHeads; ++h) {
      const __m512i w = broadcast_pair(reinterpret_cast<const uint16_t*>(weights + h * kDecodeChunk) + t);
      for (int j = 0; j < kVectors; ++j) acc[h][j] = dot(acc[h][j], x[j], w);
    }
  }
  HWY_UNROLL(4)
  for (int h = 0; h < kHeads; ++h) {
    HWY_UNROLL(8)
    for (int j = 0; j < kVectors; ++j) _mm512_store_ps(o + h * head_dim + 16 * j, acc[h][j]);
  }
}

struct DotMath {
  using T = uint16_t;
  using Stored = uint16_t;
  static constexpr int kScoreHeads = 4;
  static constexpr int kQueryFloats = 1;  // twice 16 bits
  static constexpr int kLanes = 16;
  static constexpr float kNone = kNoMax;
  // Four pages of 16 keys, side by side. A core of Zen 4 has some 25 misses of L1 in flight, which asking by instructions fills; its
  // prefetcher of L2 has more, and follows each of the four.
  static constexpr int kStreams = 4;

  static int32_t chunk_keys(const KvView&) { return kDecodeChunk; }
  // 16 KiB ahead at head_dim 64 and at 128; less and more are slower.
  static bool two_ahead(const KvView& kv) { return kv.head_dim < 128; }
  static float query_unit(float soft_cap) { return soft_cap > 0 ? 1.0f / soft_cap : std::numbers::log2e_v<float>; }

  static void widen_queries(const uint16_t* q, DType dtype, int64_t n, float* to) {
    for (int64_t i = 0; i < n; i += 16) {
      const __m512 x = dtype == DType::bf16 ? _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load16(q + i)), 16))
                                            : _mm512_cvtph_ps(load16(q + i));
      _mm512_storeu_ps(to + i, x);
    }
  }

  // Rounded to bf16, 16 elements of every head after the other's, each twice: once a half of load_two(). [d / 16, heads, 2, 16]
  static void pack_queries(const float* q, float factor, int64_t head_dim, int heads, float* to) {
    for (int64_t e = 0; e < head_dim; e += 16) {
      for (int h = 0; h < heads; ++h, to += 16) {
        const __m512 x = _mm512_mul_ps(_mm512_loadu_ps(q + h * head_dim + e), _mm512_set1_ps(factor));
        _mm512_store_si512(to, round_pairs(x, x));
      }
    }
  }

  // scores[h][t] = q[h] . k[t] for kHeads heads and every key, a tile at a time. Meanwhile asks for what `ahead` says (kAsk).
  template <int kHeads, bool kAsk>
  HWY_NOINLINE static void score_chunk(const uint16_t* k, Keys keys, const float* q, int64_t head_dim, const Ahead<uint16_t>& ahead,
                                       float* scores) {
    constexpr int kEach = kSums / kHeads;  // accumulators of a head
    constexpr int kKeys = 2 * kEach;
    static_assert(kKeys <= kDecodeTile);
    int64_t line = 0;
    for (int32_t t = 0; t < keys.count; t += kKeys) {
      const uint16_t* rows[kKeys];
      for (int i = 0; i < kKeys; ++i) rows[i] = k + keys.at[t + i];
      __m512 acc[kSums];
      for (__m512& a : acc) a = _mm512_setzero_ps();
      const float* qe = q;
      for (int64_t e = 0; e < head_dim; e += 16, qe += 16 * kHeads) {
        if constexpr (kAsk) {
          for (int i = 0; i < kEach; ++i) ask(ahead, line++);  // a step reads as many
        }
        for (int j = 0; j < kEach; ++j) {
          const __m512i x = load_two(rows[first_key(j)] + e, rows[first_key(j) + 4] + e);
          for (int h = 0; h < kHeads; ++h) {
            acc[h * kEach + j] = dot(acc[h * kEach + j], x, _mm512_load_si512(qe + 16 * h));
          }
        }
      }
      store_sums<kKeys>(acc, scores + t);
    }
  }

  static void bias_scores(float soft_cap, float slope, const KeyChunk& chunk, float* scores) {
    const __m512 cap = _mm512_set1_ps(soft_cap * std::numbers::log2e_v<float>);
    for (int32_t t = 0; t < chunk.count; t += 16) {
      __m512 x = _mm512_load_ps(scores + t);
      if (soft_cap > 0) x = _mm512_mul_ps(cap, tanh_ps(x));
      if (slope != 0) x = _mm512_fmadd_ps(_mm512_loadu_ps(chunk.age + t), _mm512_set1_ps(slope * std::numbers::log2e_v<float>), x);
      _mm512_store_ps(scores + t, x);
    }
  }

  // Scores to weights 2^(x - m) in bf16, in the first half of their row, several heads at once. A sum is that of rounded weights: what
  // o is divided by then is what V was multiplied with, and a lone key's V comes out as it is.
  template <int kHeads>
  HWY_NOINLINE static void weigh_scores(int32_t count, float* scores, float* m, float* l, float* rescale) {
    const __m512 none = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
    const int32_t whole = (count + 31) / 32 * 32;
    __m512 top[kHeads];
    __mmask16 grew = 0;
    for (int h = 0; h < kHeads; ++h) {
      float* row = scores + h * kDecodeChunk;
      for (int32_t t = count / 16 * 16; t < whole; t += 16) {
        const auto seen = static_cast<__mmask16>((1u << std::clamp(count - t, 0, 16)) - 1);
        _mm512_store_ps(row + t, _mm512_mask_load_ps(none, seen, row + t));
      }
      top[h] = _mm512_load_ps(row);
      for (int32_t t = 16; t < count; t += 16) top[h] = _mm512_max_ps(top[h], _mm512_load_ps(row + t));
      grew |= _mm512_cmp_ps_mask(_mm512_sub_ps(top[h], _mm512_set1_ps(m[h])), _mm512_set1_ps(kSlack), _CMP_NLE_UQ);
      rescale[h] = 1.0f;
    }
    if (grew != 0) {
      for (int h = 0; h < kHeads; ++h) {
        const float before = m[h];
        m[h] = std::max(_mm512_reduce_max_ps(top[h]), before);
        rescale[h] = _mm512_cvtss_f32(exp2_ps(_mm512_set1_ps(before - m[h])));
      }
    }
    const __m512i ones = _mm512_set1_epi16(0x3f80);
    for (int h = 0; h < kHeads; ++h) {
      float* row = scores + h * kDecodeChunk;
      const __m512 most = _mm512_set1_ps(m[h]);
      __m512 sum = _mm512_mul_ps(_mm512_load_ps(l + 16 * h), _mm512_set1_ps(rescale[h]));
      for (int32_t t = 0; t < whole; t += 32) {
        const __m512 a = exp2_ps(_mm512_sub_ps(_mm512_load_ps(row + t), most));
        const __m512 b = exp2_ps(_mm512_sub_ps(_mm512_load_ps(row + t + 16), most));
        const __m512i w = round_pairs(a, b);
        sum = dot(sum, w, ones);
        _mm512_store_si512(row + t / 2, w);
      }
      _mm512_store_ps(l + 16 * h, sum);
    }
  }

  template <int kHeads, bool kAsk>
  static void add_values(const uint16_t* v, Keys keys, const float* weights, const float* rescale, int64_t head_dim,
                         const Ahead<uint16_t>& ahead, float* o) {
    constexpr int kSome = kHeads < 2 ? kHeads : 2;
    const auto line_of = [&](int64_t element) { return element * keys.count / 32; };
    int64_t e = 0;
    for (; e + 128 <= head_dim; e += 128) {  // half of the heads at a time, so that rows are read as they lie, once from memory
      for (int h = 0; h < kHeads; h += kSome) {
        add_slab<kSome, 8, kAsk ? 8 * kSome / kHeads : 0>(v + e, keys, weights + h * kDecodeChunk, rescale + h, head_dim, ahead,
                                                          line_of(e + 128 * h / kHeads), o + h * head_dim + e);
      }
    }
    for (; e + 64 <= head_dim; e += 64) {
      add_slab<kHeads, 4, kAsk ? 4 : 0>(v + e, keys, weights, rescale, head_dim, ahead, line_of(e), o + e);
    }
    for (; e + 32 <= head_dim; e += 32) {
      add_slab<kHeads, 2, kAsk ? 2 : 0>(v + e, keys, weights, rescale, head_dim, ahead, line_of(e), o + e);
    }
    if (e < head_dim) add_slab<kHeads, 1, kAsk ? 1 : 0>(v + e, keys, weights, rescale, head_dim, ahead, line_of(e), o + e);
  }

  // A row from the order of load_value_pairs().
  static void unpack_row(const float* from, int64_t head_dim, float* to) {
    int64_t i = 0;
    for (; i + 32 <= head_dim; i += 32) {
      for (int64_t e = 0; e < 32; ++e) to[i + e] = from[i + e / 4 % 2 * 16 + e / 8 * 4 + e % 4];
    }
    std::copy(from + i, from + head_dim, to + i);
  }

  static float sum_lanes(const float* l) { return _mm512_reduce_add_ps(_mm512_load_ps(l)); }
};

void attend_dot(const DecodeTask& task, DecodeScratch& scratch) {
  if (task.params->kv.dtype != DType::bf16) return attend_task(task, scratch);
  TaskRunner<DotMath>(task, scratch).run();
}

}  // namespace
}  // namespace fovea::cpu
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
HWY_POP_ATTRIBUTES
