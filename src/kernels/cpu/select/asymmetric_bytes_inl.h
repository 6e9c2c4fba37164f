// The scan of asymmetric codes where one instruction looks up bytes in a table of 128 or of 64 (VBMI): seven bits of a code at a time, or
// six, of 64 tokens. For that the bytes of 64 codes change places, once for all queries; the top bits of their bytes make places of
// their own, and of seven the one that is left is a bit of a mask. What is found is added up, byte by byte, to the distances of 64
// tokens.
#if defined(FOVEA_KERNELS_CPU_ASYMMETRIC_BYTES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_KERNELS_CPU_ASYMMETRIC_BYTES_INL_H_
#undef FOVEA_KERNELS_CPU_ASYMMETRIC_BYTES_INL_H_
#else
#define FOVEA_KERNELS_CPU_ASYMMETRIC_BYTES_INL_H_
#endif

#include <fovea/kernels/hash_rotation.h>

#include <cstring>

#include <hwy/highway.h>

#include "kernels/cpu/select/asymmetric_scan_inl.h"
#include "kernels/cpu/select/code_fetch.h"
#include "kernels/cpu/select/fetch_to_write.h"

#if FOVEA_BYTE_TABLES

HWY_BEFORE_NAMESPACE();
namespace fovea::cpu::HWY_NAMESPACE::bytes {

// A piece is 16 tokens of a block, or a block of 8 twice. Four make a set, whose tokens share a vector; four sets make a run, which
// shares loads of tables.
constexpr int kPieceTokens = 16, kSetPieces = 4, kSets = 4, kRunPieces = kSets * kSetPieces;
constexpr int kQuerySet = 4;    // queries whose distances are held in registers together
constexpr int kFirstLines = 4;  // of a piece that are asked for where the hardware goes on by itself
constexpr int kStepFields = 4;  // fields of a word that are looked up between two requests for codes

// Of a run: where each field of its codes is looked up, and the bits that are left over.
template <class Fields>
struct Places {
  __m512i field[kMaxHashWords][Fields::kFields][kSets];
  __mmask64 last[kMaxHashWords][kSets];
};

// The top bits of bytes o[j] of a word as places of fields of their own. What lies above a place's bits does not matter.
HWY_INLINE void find_top_places(SevenBits, const __m512i (&o)[8], __m512i (*HWY_RESTRICT to)[kSets], __mmask64* HWY_RESTRICT last) {
  // Bit 7 of byte j to bit j. What moves down has no bit 0, so that a mean with 0 halves it; a shift has fewer ports.
  const auto half_of = [](__m512i x) HWY_ATTR { return _mm512_avg_epu8(x, _mm512_setzero_si512()); };
  const __m512i top = _mm512_set1_epi8(static_cast<char>(0x80));
  __m512i tops = _mm512_and_si512(o[0], top);
  HWY_UNROLL(8)
  for (int j = 1; j < 7; ++j) tops = _mm512_ternarylogic_epi64(top, o[j], half_of(tops), 0xca);  // top ? o[j] : tops / 2
  to[0][0] = half_of(tops);
  *last = _mm512_movepi8_mask(o[7]);
}
HWY_INLINE void find_top_places(SixBits, const __m512i (&o)[8], __m512i (*HWY_RESTRICT to)[kSets], __mmask64*) {
  const __m512i top = _mm512_set1_epi8(static_cast<char>(0xc0));
  const auto down = [](__m512i x) HWY_ATTR { return _mm512_srli_epi16(x, 2); };
  const auto above = [&](__m512i high, __m512i low) HWY_ATTR { return _mm512_ternarylogic_epi64(top, high, down(low), 0xca); };
  to[0][0] = down(above(o[2], above(o[1], o[0])));
  to[1][0] = down(above(o[5], above(o[4], o[3])));
  to[2][0] = down(down(above(o[7], o[6])));
}

// The table of a field of one query.
template <class Fields>
struct Table {
  const __m512i low, high;  // high: of seven bits
  explicit HWY_INLINE Table(const uint8_t* at)
      : low(_mm512_load_si512(at)), high(Fields::kBits == 7 ? _mm512_load_si512(at + 64) : _mm512_setzero_si512()) {}
  HWY_INLINE __m512i at(__m512i places) const {
    return Fields::kBits == 7 ? _mm512_permutex2var_epi8(low, places, high) : _mm512_permutexvar_epi8(places, low);
  }
};

// One word of a set's codes, which lie `half` apart in the two halves of a piece. Byte 4 i + p of a vector is of piece p; the tokens
// of double word i are lane i / 4, half i / 2 % 2, place i % 2 in the lane.
template <class Fields>
HWY_INLINE void find_places(const uint64_t* const* HWY_RESTRICT pieces, int64_t offset, int64_t half,
                            __m512i (*HWY_RESTRICT to)[kSets], __mmask64* HWY_RESTRICT last) {
  __m512i d[2][4], w[2][2], o[8];
  HWY_UNROLL(4)
  for (int p = 0; p < 4; ++p) {
    const __m512 a = _mm512_loadu_ps(pieces[p] + offset), b = _mm512_loadu_ps(pieces[p] + offset + half);
    d[0][p] = _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0x88));
    d[1][p] = _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0xdd));
  }
  const __m512i swap_words = _mm512_set4_epi32(0x0d0c0f0e, 0x09080b0a, 0x05040706, 0x01000302);
  const __m512i swap_bytes = _mm512_set4_epi32(0x0e0f0c0d, 0x0a0b0809, 0x06070405, 0x02030001);
  HWY_UNROLL(2)
  for (int i = 0; i < 2; ++i) {
    HWY_UNROLL(2)
    for (int p = 0; p < 2; ++p) {
      w[0][p] = _mm512_mask_shuffle_epi8(d[i][p], 0xcccccccccccccccc, d[i][p + 2], swap_words);
      w[1][p] = _mm512_mask_shuffle_epi8(d[i][p + 2], 0x3333333333333333, d[i][p], swap_words);
    }
    HWY_UNROLL(2)
    for (int j = 0; j < 2; ++j) {
      o[4 * i + 2 * j] = _mm512_mask_shuffle_epi8(w[j][0], 0xaaaaaaaaaaaaaaaa, w[j][1], swap_bytes);
      o[4 * i + 2 * j + 1] = _mm512_mask_shuffle_epi8(w[j][1], 0x5555555555555555, w[j][0], swap_bytes);
    }
  }
  HWY_UNROLL(8)
  for (int j = 0; j < 8; ++j) to[j][0] = o[j];
  find_top_places(Fields(), o, to + 8, last);
}

// Some pieces of a range of blocks: so many that a head's tables stay in L1 meanwhile, so few that threads neither begin without codes
// for long nor wait long for the last one. The fewer heads, the more pieces; few in the first and the last ones of a long
// range, since nothing is scored while the first one's codes arrive, and none arrive while the last one is scored. Where the
// hardware goes on by itself, no more pages than it follows.
struct Chunk {
  int64_t first = 0, end = 0;  // end: of the range
  int count = 0, size = 0, most = CodeFetch::kMost;
  bool grows = false;
  const uint64_t* codes[CodeFetch::kMost];  // of a KV head

  // The last piece of the range stands for those of a run beyond it.
  HWY_INLINE void find(const AsymmetricScan& s, int per_block, int head) {
    const int shift = std::countr_zero(static_cast<uint32_t>(per_block));
    for (int i = 0; i < (count + kRunPieces - 1) / kRunPieces * kRunPieces; ++i) {
      const int64_t piece = std::min(first + i, end - 1);
      codes[i] = block_codes(s, static_cast<int32_t>(piece >> shift), head) + (piece & (per_block - 1)) * kPieceTokens;
    }
  }
  // The next one; false: there is none. Whole blocks count, `rest` is set if the one that is not whole was among those taken.
  HWY_INLINE bool advance(const AsymmetricScan& s, BlockSource& source, int per_block, bool& rest) {
    first += count;
    if (first == end) {
      const int32_t whole = s.len / s.block_size;
      const BlockRange r = source.take(std::max(1, size / per_block));
      if (grows)
        size = std::clamp(source.own.count() * per_block / (2 * kRunPieces) * kRunPieces, kRunPieces, std::min(2 * size, most));
      rest = rest || (r.count() > 0 && r.end > whole);
      first = int64_t{r.begin} * per_block, end = std::max(first, int64_t{std::min(r.end, whole)} * per_block);
    }
    count = static_cast<int>(std::min<int64_t>(most, end - first));
    return count > 0;
  }
  HWY_INLINE void fetch_ranks(const AsymmetricScan& s, int per_block) const {
    const int64_t blocks = (count + per_block - 1) / per_block;
    for (int h = 0; h < (s.share_heads ? 1 : s.kv_heads); ++h)
      fetch_to_write(s.ranks + h * s.rank_stride + first / per_block, blocks * sizeof(int32_t));
  }
};

template <int kQueries>
using Sums = __m512i[kQueries][kSets];

// The shares of the word's fields [begin, end), summed up by byte.
template <class Fields, int kQueries>
HWY_INLINE void sum_fields(const Places<Fields>& places, int word, const uint8_t* HWY_RESTRICT tables, int64_t stride, int begin,
                           int end, Sums<kQueries>& sums, CodeFetch& ahead) {
  const auto add = [&](int field, const auto& share) HWY_ATTR {
    __m512i at[kSets];
    HWY_UNROLL(4)
    for (int i = 0; i < kSets; ++i) at[i] = places.field[word][field][i];
    HWY_UNROLL(4)
    for (int q = 0; q < kQueries; ++q) {
      const uint8_t* from = tables + q * stride + field * Fields::kFieldBytes;
      const Table<Fields> table(from);
      HWY_UNROLL(4)
      for (int i = 0; i < kSets; ++i) sums[q][i] = share(table.at(at[i]), sums[q][i], from + Fields::kFieldBytes, i);
    }
  };
  if (Fields::kLeavesOne && end == Fields::kFields) {
    add(--end, [&](__m512i x, __m512i, const uint8_t* of_last, int i)
                   HWY_ATTR { return _mm512_mask_sub_epi8(x, places.last[word][i], x, _mm512_load_si512(of_last)); });
  } else {
    add(--end, [](__m512i x, __m512i, const uint8_t*, int) HWY_ATTR { return x; });
  }
  HWY_UNROLL(1)
  for (int f = begin; f < end; ++f) {
    add(f, [](__m512i x, __m512i sum, const uint8_t*, int) HWY_ATTR { return _mm512_add_epi8(sum, x); });
    if (f % kStepFields == kStepFields - 1) ahead.many();
  }
}

// Lane i of 32 bits: op over the lanes of v[i].
template <class Op>
HWY_INLINE __m512i fold16(const __m512i (&v)[16], const Op& op) {
  __m512i lanes[4];
  HWY_UNROLL(4)
  for (int i = 0; i < 4; ++i) {
    const __m512i* x = v + 4 * i;
    const __m512i a = op(_mm512_unpacklo_epi32(x[0], x[1]), _mm512_unpackhi_epi32(x[0], x[1]));
    const __m512i b = op(_mm512_unpacklo_epi32(x[2], x[3]), _mm512_unpackhi_epi32(x[2], x[3]));
    lanes[i] = op(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
  }
  const auto halves = [&](__m512i a, __m512i b)
                          HWY_ATTR { return op(_mm512_shuffle_i64x2(a, b, 0x44), _mm512_shuffle_i64x2(a, b, 0xee)); };
  const __m512i a = halves(lanes[0], lanes[1]), b = halves(lanes[2], lanes[3]);
  return op(_mm512_shuffle_i64x2(a, b, 0x88), _mm512_shuffle_i64x2(a, b, 0xdd));
}

// The least distance of each piece to each query, [kQuerySet, kRunPieces] bytes: 255 stands for itself and beyond. No word may have a
// distance beyond 255.
template <class Fields, int kQueries>
HWY_NOINLINE __m512i nearest(const Places<Fields>& places, int words, const uint8_t* HWY_RESTRICT tables, CodeFetch& ahead) {
  const int64_t stride = int64_t{words} * kTableBytesPerWord;
  Sums<kQueries> sums, before;
  sum_fields<Fields, kQueries>(places, 0, tables, stride, 0, Fields::kFields, sums, ahead);
  for (int w = 1; w < words; ++w) {
    std::memcpy(&before, &sums, sizeof(sums));
    sum_fields<Fields, kQueries>(places, w, tables + w * kTableBytesPerWord, stride, 0, Fields::kFields, sums, ahead);
    HWY_UNROLL(4)
    for (int q = 0; q < kQueries; ++q) {
      HWY_UNROLL(4)
      for (int i = 0; i < kSets; ++i) sums[q][i] = _mm512_adds_epu8(sums[q][i], before[q][i]);
    }
  }
  __m512i all[16];
  HWY_UNROLL(16)
  for (int i = 0; i < 16; ++i) all[i] = sums[std::min(i / kSets, kQueries - 1)][i % kSets];
  return fold16(all, [](__m512i a, __m512i b) HWY_ATTR { return _mm512_min_epu8(a, b); });
}

// Distances of 16 bits: [query, set, pieces 0 and 2 or 1 and 3 of it].
using Distances = __m512i[kQuerySet][kSets][2];

template <class Fields, int kQueries>
HWY_NOINLINE void distances(const Places<Fields>& places, int words, const uint8_t* HWY_RESTRICT tables, Distances& to,
                            CodeFetch& ahead) {
  constexpr int kFirst = Fields::kFields / 2;  // four of nine fields, or five of eleven, and the others: no sum is above 252
  const int64_t stride = int64_t{words} * kTableBytesPerWord;
  for (int w = 0; w < words; ++w, tables += kTableBytesPerWord) {
    for (int part = 0; part < 2; ++part) {
      Sums<kQueries> sums;
      part == 0 ? sum_fields<Fields, kQueries>(places, w, tables, stride, 0, kFirst, sums, ahead)
                : sum_fields<Fields, kQueries>(places, w, tables, stride, kFirst, Fields::kFields, sums, ahead);
      HWY_UNROLL(4)
      for (int q = 0; q < kQueries; ++q) {
        HWY_UNROLL(4)
        for (int i = 0; i < kSets; ++i) {
          const __m512i even = _mm512_maskz_mov_epi8(0x5555555555555555, sums[q][i]), odd = _mm512_srli_epi16(sums[q][i], 8);
          __m512i(&x)[2] = to[q][i];
          x[0] = w == 0 && part == 0 ? even : _mm512_add_epi16(x[0], even);
          x[1] = w == 0 && part == 0 ? odd : _mm512_add_epi16(x[1], odd);
        }
      }
    }
  }
}

// [by queries: 1, 2, more]
template <class Fields>
constexpr __m512i (*kNearest[])(const Places<Fields>&, int, const uint8_t*, CodeFetch&) = {nearest<Fields, 1>, nearest<Fields, 2>,
                                                                                           nearest<Fields, kQuerySet>};
template <class Fields>
constexpr void (*kDistances[])(const Places<Fields>&, int, const uint8_t*, Distances&, CodeFetch&) = {
    distances<Fields, 1>, distances<Fields, 2>, distances<Fields, kQuerySet>};

// float(A - 2 D), exactly.
HWY_INLINE __m512 signed_sums(__m512i distances, const QueryScale& scale) {
  return _mm512_fnmadd_ps(_mm512_cvtepi32_ps(distances), _mm512_set1_ps(2.0f), _mm512_set1_ps(static_cast<float>(scale.sum)));
}

// Scores of a run's pieces where all keys count alike: the nearest token of a piece is its best. False where a distance may not fit
// a byte.
template <class Fields>
HWY_INLINE bool score_alike(const Places<Fields>& places, int words, const uint8_t* tables, const QueryScale* scales, int queries,
                            CodeFetch& ahead, __m512& best) {
  for (int q = 0; q < queries; ++q) {
    if (!scales[q].bytes) return false;
  }
  const __m512i least = kNearest<Fields>[std::min(queries, 3) - 1](places, words, tables, ahead);
  if (HWY_UNLIKELY(_mm512_cmpeq_epi8_mask(least, _mm512_set1_epi8(-1)) & ~uint64_t{0} >> (64 - kRunPieces * queries))) return false;
  alignas(64) uint8_t bytes[64];
  _mm512_store_si512(bytes, least);
  for (int q = 0; q < queries; ++q) {
    const __m512i d = _mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes + q * kRunPieces)));
    best = _mm512_max_ps(best, _mm512_mul_ps(signed_sums(d, scales[q]), _mm512_set1_ps(scales[q].weight)));
  }
  return true;
}

// The factors of a piece's tokens in the order of find_places.
HWY_INLINE __m512 load_factors(const uint16_t* factors, int64_t half) {
  const auto load = [](const uint16_t* x) HWY_ATTR { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(x)); };
  const __m512i all = _mm512_cvtepu16_epi32(_mm256_setr_m128i(load(factors), load(factors + half)));
  const __m512i order = _mm512_setr_epi32(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_permutexvar_epi32(order, all), 16));
}

// Scores of a run's pieces token by token: factors[kRunPieces]. best: lane by lane, of each piece.
template <class Fields>
HWY_INLINE void score_by_length(const Places<Fields>& places, int words, const uint8_t* tables, const QueryScale* scales,
                                int queries, const __m512* factors, CodeFetch& ahead, __m512i (&best)[kRunPieces]) {
  Distances all;
  kDistances<Fields>[std::min(queries, 3) - 1](places, words, tables, all, ahead);
  for (int q = 0; q < queries; ++q) {
    for (int i = 0; i < kRunPieces; ++i) {
      const __m512i two = all[q][i / kSetPieces][i % 2];
      const __m512i d = i % kSetPieces < 2 ? _mm512_maskz_mov_epi16(0x55555555, two) : _mm512_srli_epi32(two, 16);
      const __m512 score = _mm512_mul_ps(_mm512_mul_ps(signed_sums(d, scales[q]), factors[i]), _mm512_set1_ps(scales[q].weight));
      best[i] = _mm512_castps_si512(_mm512_max_ps(score, _mm512_castsi512_ps(best[i])));
    }
  }
}

HWY_INLINE __m512i ranks_of(__m512 score) {
  const __m512i bits = _mm512_castps_si512(_mm512_add_ps(score, _mm512_setzero_ps()));
  const __m512i flip = _mm512_and_si512(_mm512_srai_epi32(bits, 31), _mm512_set1_epi32(0x7fffffff));
  return _mm512_ternarylogic_epi32(bits, flip, flip, 0xc3);  // ~(bits ^ flip)
}

// Ranks of a run's `count` pieces, the last of which stands for those beyond: the first one's tokens begin at `first` of their block.
template <class Fields, bool kFactors>
HWY_INLINE __m512i rank_run(const AsymmetricScan& s, const uint64_t* const* pieces, int count, int64_t offset, int first, int head,
                            CodeFetch& ahead) {
  const int64_t half = s.block_size == 8 ? 0 : 8, first_query = int64_t{head} * s.queries_per_head;
  const int64_t query_bytes = int64_t{s.words} * kTableBytesPerWord;
  const uint8_t* tables = s.tables + first_query * query_bytes;
  const QueryScale* scales = s.scales + first_query;
  Places<Fields> places;
  for (int w = 0; w < s.words; ++w) {
    for (int i = 0; i < kSets; ++i) {
      auto* to = reinterpret_cast<__m512i(*)[kSets]>(&places.field[w][0][i]);
      find_places<Fields>(pieces + i * kSetPieces, offset + int64_t{w} * s.block_size, half, to, &places.last[w][i]);
    }
  }
  const __m512 none = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  const auto set_from = [&](int q) HWY_ATTR { return std::min(kQuerySet, s.queries_per_head - q); };
  if (!kFactors) {
    __m512 best = none;
    int q = 0;
    while (q < s.queries_per_head && score_alike(places, s.words, tables + q * query_bytes, scales + q, set_from(q), ahead, best)) {
      q += kQuerySet;
    }
    if (HWY_LIKELY(q >= s.queries_per_head)) return ranks_of(best);
  }
  __m512 factors[kRunPieces];
  __m512i best[kRunPieces];
  for (int i = 0; i < kRunPieces; ++i) {
    const int token = (first + std::min(i, count - 1) * kPieceTokens) & (s.block_size - 1);
    factors[i] = kFactors ? load_factors(factors_of(s, pieces[i] + offset - token) + token, half) : _mm512_set1_ps(1.0f);
    best[i] = _mm512_castps_si512(none);
  }
  for (int q = 0; q < s.queries_per_head; q += kQuerySet) {
    score_by_length(places, s.words, tables + q * query_bytes, scales + q, set_from(q), factors, ahead, best);
  }
  return ranks_of(_mm512_castsi512_ps(fold16(best, [](__m512i a, __m512i b) HWY_ATTR {
    return _mm512_castps_si512(_mm512_max_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b)));
  })));
}

// Whole blocks of the source, a chunk of every head, then the next. Whether a block that is not whole was among those taken.
template <class Fields, bool kFactors>
HWY_INLINE bool scan_chunks(const AsymmetricScan& s, BlockSource& source) {
  const int per_block = std::max(1, s.block_size / kPieceTokens);
  const bool per_head = s.slot_head_stride != 0;
  const int steps_of_run = s.words * ((Fields::kFields - 1) / kStepFields) * ((s.queries_per_head + kQuerySet - 1) / kQuerySet);
  bool rest = false;
  Chunk next;
  if (s.kv_heads > 4) next.most /= 2;
  if (s.streams) next.most = kRunPieces;
  next.grows = !source.queue && source.own.count() * per_block > 8 * next.most;
  next.size = next.grows ? kRunPieces : next.most;
  CodeFetch ahead;
  bool more = next.advance(s, source, per_block, rest);
  if (more) {
    ahead.find(s, next.first, next.count, per_block, 0, 1);
    ahead.some();
    next.fetch_ranks(s, per_block);
  }
  while (more) {
    Chunk now = next;
    more = next.advance(s, source, per_block, rest);
    if (more) next.fetch_ranks(s, per_block);
    const int runs = (now.count + kRunPieces - 1) / kRunPieces;
    for (int h = 0; h < s.kv_heads; ++h) {
      if (per_head || h == 0) {
        now.find(s, per_block, h);
        ahead.find(s, next.first, next.count, per_block, h, steps_of_run * runs * (per_head ? 1 : s.kv_heads),
                   s.streams ? kFirstLines : CodeFetch::kAllLines);
      }
      for (int r = 0; r < runs; ++r) {
        const int64_t piece = now.first + r * kRunPieces, offset = per_head ? 0 : h * s.head_stride;
        const int first = static_cast<int>(piece & (per_block - 1)), left = static_cast<int>(now.end - piece);
        alignas(64) int32_t ranks[kRunPieces];
        _mm512_store_si512(ranks,
                           rank_run<Fields, kFactors>(s, now.codes + r * kRunPieces, left, offset, first * kPieceTokens, h, ahead));
        int n = kRunPieces;
        for (int size = per_block; size > 1 && n > 1; size /= 2) {
          n /= 2;
          for (int i = 0; i < n; ++i) ranks[i] = std::min(ranks[2 * i], ranks[2 * i + 1]);
        }
        const auto block = static_cast<int32_t>(piece / per_block);
        put(s, block, h, ranks, std::min(n, static_cast<int32_t>(now.end / per_block) - block), first > 0);
      }
    }
  }
  return rest;
}

template <class Fields>
HWY_INLINE bool scan_fields(const AsymmetricScan& s, BlockSource& source) {
  return s.length_factor ? scan_chunks<Fields, true>(s, source) : scan_chunks<Fields, false>(s, source);
}
HWY_INLINE bool scan_whole(const AsymmetricScan& s, BlockSource& source) {
  return s.narrow ? scan_fields<SixBits>(s, source) : scan_fields<SevenBits>(s, source);
}

}  // namespace fovea::cpu::HWY_NAMESPACE::bytes
HWY_AFTER_NAMESPACE();

#endif  // FOVEA_BYTE_TABLES

#endif  // per target
