// The scan of asymmetric codes where one instruction looks up bytes in a table of 128 (VBMI). The low nibbles of a word's eight
// bytes find their places in one table, the high ones in another, so codes are looked up as they lie, eight tokens at a time.
#if defined(FOVEA_KERNELS_CPU_ASYMMETRIC_BYTES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_KERNELS_CPU_ASYMMETRIC_BYTES_INL_H_
#undef FOVEA_KERNELS_CPU_ASYMMETRIC_BYTES_INL_H_
#else
#define FOVEA_KERNELS_CPU_ASYMMETRIC_BYTES_INL_H_
#endif

#include <utility>

#include <hwy/highway.h>

#include "kernels/cpu/select/asymmetric_scan_inl.h"

#if FOVEA_BYTE_TABLES

HWY_BEFORE_NAMESPACE();
namespace fovea::cpu::HWY_NAMESPACE::bytes {

constexpr int kSet = 4;  // queries whose distances share a vector
constexpr int kVectorTokens = 8;
constexpr int kVectors = 16, kRunTokens = kVectors * kVectorTokens;  // of a run
constexpr int kPieces = 8;                                           // whose results are taken together

// Where the codes of a run lie, of one KV head.
struct Run {
  const uint64_t* codes[kVectors];

  // From token `first` of `block` on. Blocks from `end` on are not read: the one before stands for them.
  HWY_INLINE void find(const AsymmetricScan& s, int32_t block, int first, int32_t end, int head) {
    const int shift = std::countr_zero(static_cast<uint32_t>(s.block_size));
    for (int v = 0, at = first; v < kVectors; ++v, at += kVectorTokens) {
      codes[v] = block_codes(s, std::min(block + (at >> shift), end - 1), head) + (at & (s.block_size - 1));
    }
  }
};

// What is kept of a run's distances, kSet of 16 bits together: of every token; of pieces of one or two vectors those of its
// nearest tokens, four for each of two pieces.
enum class Keep { tokens, vectors, pairs };
constexpr int kept_vectors(Keep keep) { return keep == Keep::tokens ? kVectors : keep == Keep::vectors ? kPieces : kPieces / 2; }

HWY_INLINE __m512i nearest_of_two(__m512i a, __m512i b) {
  return _mm512_min_epu16(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

// Distances of a run's tokens to kQueries queries, [kept_vectors(kKeep), 8, kSet]; its codes lie `offset` words behind where it
// says. Meanwhile fetches kWords cache lines at each of `lines` into L2.
template <Keep kKeep, int kWords, int kQueries>
HWY_NOINLINE void distances(const Run& run, int64_t offset, int64_t word_stride, const Run& lines,
                            const uint8_t* HWY_RESTRICT tables, uint16_t* HWY_RESTRICT to) {
  constexpr int kTogether = 4;  // vectors that share a load of a table
  constexpr int kSums = kKeep == Keep::pairs ? 2 : 4;
  const __m512i low_nibbles = _mm512_set1_epi8(0x0f), high_nibbles = _mm512_set1_epi8(static_cast<char>(0xf0));
  const __m512i low_bytes = _mm512_set1_epi64(0x7060504030201000), high_bytes = _mm512_set1_epi64(0x0e0c0a0806040200);
  const __m512i to_all = _mm512_set4_epi32(0x09080908, 0x09080908, 0x01000100, 0x01000100);  // 16 bits of 64 to all four
  for (int v = 0; v < kVectors; v += kTogether) {
    __m512i low[kTogether][kWords], high[kTogether][kWords], all[kSums];
    HWY_UNROLL(8)
    for (int i = 0; i < kTogether; ++i) {
      HWY_UNROLL(8)
      for (int w = 0; w < kWords; ++w) {
        const __m512i codes = _mm512_loadu_si512(run.codes[v + i] + offset + w * word_stride);
        low[i][w] = _mm512_ternarylogic_epi64(codes, low_nibbles, low_bytes, 0xea);  // (codes & nibbles) | bytes
        // Half of it by a mean with 0: a shift would take a port of the look-ups.
        high[i][w] = _mm512_avg_epu8(_mm512_ternarylogic_epi64(codes, high_nibbles, high_bytes, 0xea), _mm512_setzero_si512());
        _mm_prefetch(reinterpret_cast<const char*>(lines.codes[v + i] + w * 8), _MM_HINT_T1);
      }
    }
    HWY_UNROLL(4)
    for (__m512i& sums : all) sums = _mm512_setzero_si512();
    HWY_UNROLL(1)  // more would spill tables
    for (int q = 0; q < kQueries; ++q) {
      const __mmask64 piece = 0x0303030303030303u << 2 * q;
      __m512i up[kTogether], down[kTogether], sum[kTogether];
      HWY_UNROLL(8)
      for (int w = 0; w < kWords; ++w) {
        const uint8_t* table = tables + (q * kWords + w) * kTableBytesPerWord;
        const __m512i t0 = _mm512_load_si512(table), t1 = _mm512_load_si512(table + 64);
        const __m512i t2 = _mm512_load_si512(table + 128), t3 = _mm512_load_si512(table + 192);
        HWY_UNROLL(8)
        for (int i = 0; i < kTogether; ++i) {
          const __m512i a = _mm512_permutex2var_epi8(t0, low[i][w], t1), b = _mm512_permutex2var_epi8(t2, high[i][w], t3);
          up[i] = w == 0 ? a : _mm512_add_epi8(up[i], a);
          down[i] = w == 0 ? b : _mm512_add_epi8(down[i], b);
        }
      }
      HWY_UNROLL(8)
      for (int i = 0; i < kTogether; ++i) sum[i] = _mm512_sad_epu8(up[i], down[i]);
      HWY_UNROLL(8)
      for (int i = 0; i < kSums; ++i) {
        if (kKeep == Keep::pairs) sum[i] = _mm512_min_epu16(sum[2 * i], sum[2 * i + 1]);
        all[i] = _mm512_mask_shuffle_epi8(all[i], piece, sum[i], to_all);
      }
    }
    HWY_UNROLL(8)
    for (int i = 0; i < kSums; i += kKeep == Keep::tokens ? 1 : 2, to += 32) {
      _mm512_store_si512(to, kKeep == Keep::tokens ? all[i] : nearest_of_two(all[i], all[i + 1]));
    }
  }
}

using DistancesFn = void (*)(const Run&, int64_t, int64_t, const Run&, const uint8_t*, uint16_t*);
// [words, by queries: 1, 2, more]
template <Keep kKeep>
constexpr DistancesFn kDistances[kMaxHashWords][3] = {
    {distances<kKeep, 1, 1>, distances<kKeep, 1, 2>, distances<kKeep, 1, kSet>},
    {distances<kKeep, 2, 1>, distances<kKeep, 2, 2>, distances<kKeep, 2, kSet>},
    {distances<kKeep, 3, 1>, distances<kKeep, 3, 2>, distances<kKeep, 3, kSet>},
    {distances<kKeep, 4, 1>, distances<kKeep, 4, 2>, distances<kKeep, 4, kSet>},
};

// What makes scores of a set's distances; 128 bits hold the four queries.
struct SetScale {
  __m512 sum, weight;
  __mmask16 valid;  // lanes of queries that are there

  HWY_INLINE SetScale(const QueryScale* s, int queries) {
    const int b = std::min(1, queries - 1), c = std::min(2, queries - 1), d = queries - 1;
    sum = _mm512_broadcast_f32x4(_mm_cvtepi32_ps(_mm_setr_epi32(s[0].sum, s[b].sum, s[c].sum, s[d].sum)));
    weight = _mm512_broadcast_f32x4(_mm_setr_ps(s[0].weight, s[b].weight, s[c].weight, s[d].weight));
    valid = static_cast<__mmask16>(0x1111 * ((1 << queries) - 1));
  }
  // float(A - 2 D), exactly.
  HWY_INLINE __m512 signed_sum(__m256i distances) const {
    return _mm512_fnmadd_ps(_mm512_cvtepi32_ps(_mm512_cvtepu16_epi32(distances)), _mm512_set1_ps(2.0f), sum);
  }
  // -inf where there is no query.
  HWY_INLINE __m512 weighed(__m512 x) const {
    return _mm512_mask_mul_ps(_mm512_set1_ps(-std::numeric_limits<float>::infinity()), valid, x, weight);
  }
};

// The best of the four in each 128 bits of a, then of b.
HWY_INLINE __m256 best_of_sets(__m512 a, __m512 b) {
  __m512 best = _mm512_max_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));  // two of a, two of b
  best = _mm512_max_ps(best, _mm512_permute_ps(best, 0xb1));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 0, 0, 0, 0, 0, 0, 0);
  return _mm512_castps512_ps256(_mm512_permutexvar_ps(order, best));
}

// Best scores of eight pieces by distances [4, 8, kSet], each vector of two pieces.
HWY_INLINE __m256 best_alike(const uint16_t* HWY_RESTRICT distances, const SetScale& scale) {
  const auto x = [&](int i) HWY_ATTR { return _mm512_load_si512(distances + i * 32); };
  const auto halves = [](__m512i a, __m512i b)
                          HWY_ATTR { return _mm512_min_epu16(_mm512_shuffle_i64x2(a, b, 0x44), _mm512_shuffle_i64x2(a, b, 0xee)); };
  const __m512i a = halves(x(0), x(1)), b = halves(x(2), x(3));
  const __m512i all = _mm512_min_epu16(_mm512_shuffle_i64x2(a, b, 0x88), _mm512_shuffle_i64x2(a, b, 0xdd));
  return best_of_sets(scale.weighed(scale.signed_sum(_mm512_castsi512_si256(all))),
                      scale.weighed(scale.signed_sum(_mm512_extracti64x4_epi64(all, 1))));
}

// Best scores of pieces by the scores of the best tokens of each: [4, kSet].
HWY_INLINE __m256 best_by_length(const __m512 (&best)[kPieces]) {
  const auto halves = [](__m512 a, __m512 b)
                          HWY_ATTR { return _mm512_max_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee)); };
  const auto four = [&](int i) HWY_ATTR {
    const __m512 a = halves(best[i], best[i + 1]), b = halves(best[i + 2], best[i + 3]);
    return _mm512_max_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  };
  return best_of_sets(four(0), four(4));
}

// Scores of a vector's tokens, the better of the first and the last four: [4, kSet].
HWY_INLINE __m512 score_by_length(const uint16_t* HWY_RESTRICT distances, const uint16_t* factors, const SetScale& scale) {
  const __m512i all = _mm512_load_si512(distances);
  const __m128i bf16 = _mm_loadu_si128(reinterpret_cast<const __m128i*>(factors));
  const __m512 f = _mm512_castps256_ps512(_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bf16), 16)));
  const __m512i places = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
  const __m512 f0 = _mm512_permutexvar_ps(places, f), f1 = _mm512_permutexvar_ps(_mm512_add_epi32(places, _mm512_set1_epi32(4)), f);
  const __m512 a = scale.weighed(_mm512_mul_ps(scale.signed_sum(_mm512_castsi512_si256(all)), f0));
  const __m512 b = scale.weighed(_mm512_mul_ps(scale.signed_sum(_mm512_extracti64x4_epi64(all, 1)), f1));
  return _mm512_max_ps(a, b);
}

// Best scores of a run's pieces of kPieceVectors vectors, eight to a vector; `first`: the run's first token in its block.
template <bool kFactors, int kPieceVectors>
HWY_INLINE void score_run(const AsymmetricScan& s, const Run& run, int64_t offset, const Run& lines, int first, int head,
                          __m256 (&best)[kVectors / kPieceVectors / kPieces]) {
  constexpr Keep kKeep = kFactors ? Keep::tokens : kPieceVectors == 1 ? Keep::vectors : Keep::pairs;
  HWY_ALIGN uint16_t scratch[kept_vectors(kKeep) * 32];
  for (__m256& b : best) b = _mm256_set1_ps(-std::numeric_limits<float>::infinity());
  for (int q = 0; q < s.queries_per_head; q += kSet) {
    const int queries = std::min(kSet, s.queries_per_head - q);
    const int64_t query = int64_t{head} * s.queries_per_head + q;
    kDistances<kKeep>[s.words - 1][std::min(queries, 3) - 1](run, offset, s.block_size, lines,
                                                             s.tables + query * s.words * kTableBytesPerWord, scratch);
    const SetScale scale(s.scales + query, queries);
    for (int r = 0; r < kVectors / kPieceVectors / kPieces; ++r) {
      if constexpr (kFactors) {
        __m512 pieces[kPieces];
        HWY_UNROLL(8)
        for (int i = 0; i < kPieces; ++i) {
          HWY_UNROLL(2)
          for (int j = 0; j < kPieceVectors; ++j) {
            const int v = (r * kPieces + i) * kPieceVectors + j, token = (first + v * kVectorTokens) & (s.block_size - 1);
            const __m512 scores = score_by_length(scratch + v * 32, factors_of(s, run.codes[v] + offset - token) + token, scale);
            pieces[i] = j == 0 ? scores : _mm512_max_ps(pieces[i], scores);
          }
        }
        best[r] = _mm256_max_ps(best[r], best_by_length(pieces));
      } else {
        best[r] = _mm256_max_ps(best[r], best_alike(scratch + r * kPieces / 2 * 32, scale));
      }
    }
  }
}

HWY_INLINE __m256i ranks_of(__m256 score) {
  const __m256i bits = _mm256_castps_si256(_mm256_add_ps(score, _mm256_setzero_ps()));
  const __m256i flip = _mm256_and_si256(_mm256_srai_epi32(bits, 31), _mm256_set1_epi32(0x7fffffff));
  return _mm256_xor_si256(_mm256_xor_si256(bits, flip), _mm256_set1_epi32(-1));
}

// What is fetched of the run `ahead`, of `step` blocks, while head h of the one before it is scored: the same head's codes. Two
// words and more are 2 KiB of a block's heads, which come sooner in the order they lie: then the h-th part of them (at 128 bits,
// from memory: 465 us instead of 546; at 64 bits 306 instead of 273).
HWY_INLINE Run lines_of(const AsymmetricScan& s, const Run& ahead, int32_t step, int h) {
  Run lines;
  const bool in_order = s.words > 1 && s.slot_head_stride == 0 && s.block_size <= kRunTokens;
  const int64_t head = s.slot_head_stride == 0 ? h * s.head_stride : 0;
  const int slots = s.kv_heads * kVectors / step;  // of a block
  for (int v = 0, at = h * kVectors; v < kVectors; ++v, ++at) {
    lines.codes[v] = in_order ? ahead.codes[at / slots * (kVectors / step)] + at % slots * (s.kv_heads * s.head_stride / slots)
                              : ahead.codes[v] + head;
  }
  return lines;
}

// Blocks [begin, end), all of them whole: a run of every head, then the next.
template <bool kFactors, int kPieceVectors>
HWY_INLINE void scan_runs(const AsymmetricScan& s, int32_t begin, int32_t end) {
  constexpr int kResults = kVectors / kPieceVectors;
  const int32_t step = std::max(1, kRunTokens / s.block_size), whole = s.len / s.block_size;
  Run run, ahead;
  ahead.find(s, begin, 0, whole, 0);
  for (int32_t b = begin, first = 0; b < end;) {
    const int32_t next_first = first + kRunTokens < s.block_size ? first + kRunTokens : 0;
    const int32_t next = next_first > 0 ? b : b + step;
    run = ahead;
    ahead.find(s, std::min(next, whole - 1), next_first, whole, 0);
    for (int h = 0; h < s.kv_heads; ++h) {
      const bool per_head = s.slot_head_stride != 0;
      if (per_head && h > 0) run.find(s, b, first, whole, h), ahead.find(s, std::min(next, whole - 1), next_first, whole, h);
      __m256 best[kResults / kPieces];
      score_run<kFactors, kPieceVectors>(s, run, per_head ? 0 : h * s.head_stride, lines_of(s, ahead, step, h), first, h, best);
      int32_t ranks[kResults];
      for (int i = 0; i < kResults / kPieces; ++i) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(ranks + i * kPieces), ranks_of(best[i]));
      }
      int n = kResults / 2;
      for (int size = 2 * kPieceVectors * kVectorTokens; size <= s.block_size && n > 0; size *= 2, n /= 2) {
        for (int i = 0; i < n; ++i) ranks[i] = std::min(ranks[2 * i], ranks[2 * i + 1]);
      }
      put(s, b, h, ranks, std::min(step, end - b), first > 0);
    }
    b = next, first = next_first;
  }
}

HWY_INLINE void scan_whole(const AsymmetricScan& s, int32_t begin, int32_t end) {
  if (s.block_size == kVectorTokens) {
    return s.length_factor ? scan_runs<true, 1>(s, begin, end) : scan_runs<false, 1>(s, begin, end);
  }
  return s.length_factor ? scan_runs<true, 2>(s, begin, end) : scan_runs<false, 2>(s, begin, end);
}

}  // namespace fovea::cpu::HWY_NAMESPACE::bytes
HWY_AFTER_NAMESPACE();

#endif  // FOVEA_BYTE_TABLES

#endif  // per target
