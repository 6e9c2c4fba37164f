#include "kernels/cpu/select/asymmetric_kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"

#define HWY_WANT_AVX3_DL
#include "kernels/cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/select/asymmetric_kernels.cpp"
#include <hwy/foreach_target.h>
//
#include <hwy/cache_control.h>
#include <hwy/highway.h>
#include "kernels/cpu/select/hash_encode_inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea::cpu::HWY_NAMESPACE {

// ---- Queries ----------------------------------------------------------------------------------------------

// q4[bits] of the rotated query y; false: all 0.
HWY_INLINE bool quantize(const float* HWY_RESTRICT y, int bits, int32_t* HWY_RESTRICT q4, float* unit) {
  const HashTag d;
  const hn::RebindToSigned<HashTag> di;
  const int lanes = static_cast<int>(hn::Lanes(d));
  HashVec most = hn::Zero(d);
  for (int i = 0; i < bits; i += lanes) {
    const HashVec v = hn::Abs(hn::Load(d, y + i));
    most = hn::IfThenElse(hn::Gt(v, most), v, most);  // a NaN is none
  }
  *unit = hn::GetLane(hn::MaxOfLanes(d, most)) / 7.0f;
  if (*unit == 0 || !std::isfinite(*unit)) return false;
  const HashVec seven = hn::Set(d, 7.0f), divisor = hn::Set(d, *unit);
  for (int i = 0; i < bits; i += lanes) {
    HashVec v = hn::Div(hn::Load(d, y + i), divisor);
    v = hn::IfThenElseZero(hn::Eq(v, v), v);
    hn::Store(hn::NearestInt(hn::Max(hn::Min(v, seven), hn::Neg(seven))), di, q4 + i);
  }
  return true;
}

// |q|; the order of the sum is HashCodec::length_factor's.
HWY_INLINE double length_of(const float* query, int n) {
  double squares[32] = {};
  for (int i = 0; i < n; ++i) squares[i % 32] += double{query[i]} * query[i];  // exact, fused or not
  for (int half = 16; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) squares[i] += squares[i + half];
  }
  return std::sqrt(squares[0]);
}

QueryScale prepare_query(const HashCodec& codec, const float* query, uint8_t* tables) {
  HWY_ALIGN float y[kRotatedMax];
  HWY_ALIGN int32_t q4[kMaxHashBits] = {};
  QueryScale out;
  float unit = 0;
  rotate(codec, query, y);
  if (quantize(y, codec.bits, q4, &unit)) {
    const double length = length_of(query, codec.head_dim);
    out.weight = static_cast<float>(unit * codec.scale / length);
    out.length = static_cast<float>(length);
  }
  for (int i = 0; i < codec.bits; i += 4, tables += kTableBytes) {
    int away = 0;  // of a nibble of zeros: the positive ones disagree
    for (int j = 0; j < 4; ++j) away += std::max(q4[i + j], 0), out.sum += std::abs(q4[i + j]);
    tables[0] = static_cast<uint8_t>(away);
    for (int j = 0; j < 4; ++j) {
      for (int n = 0; n < 1 << j; ++n) tables[n + (1 << j)] = static_cast<uint8_t>(tables[n] - q4[i + j]);
    }
  }
  return out;
}

// ---- Scan -------------------------------------------------------------------------------------------------

// Integers in the opposite order of the floats; the two zeros are one.
HWY_INLINE int32_t rank_of(float score) {
  const auto bits = std::bit_cast<int32_t>(score + 0.0f);
  return ~(bits < 0 ? bits ^ 0x7fffffff : bits);
}

// Where a head's codes of a block lie, and its length factors behind them.
HWY_INLINE const uint64_t* block_codes(const AsymmetricScan& s, int32_t block, int head) {
  return s.codes + s.slots[head * s.slot_head_stride + block] * s.block_stride + head * s.head_stride;
}
HWY_INLINE const uint16_t* factors_of(const AsymmetricScan& s, const uint64_t* codes) {
  return reinterpret_cast<const uint16_t*>(codes + static_cast<int64_t>(s.words) * s.block_size);
}

// The best score of the first `valid` tokens of a block, one at a time.
HWY_INLINE float score_tokens(const AsymmetricScan& s, const uint64_t* codes, int head, int valid) {
  float best = -std::numeric_limits<float>::infinity();
  for (int q = 0; q < s.queries_per_head; ++q) {
    const int64_t query = int64_t{head} * s.queries_per_head + q;
    for (int t = 0; t < valid; ++t) {
      const uint8_t* table = s.tables + query * s.words * kTableBytesPerWord;
      int32_t distance = 0;
      for (int w = 0; w < s.words; ++w) {
        uint64_t code = codes[w * s.block_size + t];
        for (int nibble = 0; nibble < 16; ++nibble, code >>= 4, table += kTableBytes) distance += table[code & 15];
      }
      const float factor = s.length_factor ? bf16_to_f32(factors_of(s, codes)[t]) : 1.0f;
      best = std::max(best, static_cast<float>(s.scales[query].sum - 2 * distance) * factor * s.scales[query].weight);
    }
  }
  return best;
}

HWY_INLINE void put(const AsymmetricScan& s, int32_t block, int head, float score) {
  const int32_t rank = rank_of(score);
  if (!s.share_heads) {
    s.ranks[head * s.rank_stride + block] = rank;
  } else {
    s.ranks[block] = head == 0 ? rank : std::min(s.ranks[block], rank);
  }
}

#if HWY_TARGET != HWY_SCALAR

// Eight vectors of tokens are scored together. Each lane of 128 bits has two tokens of each, and is looked up on its own:
// transposed, it holds one byte of its 16 tokens, two neighbours of vector 0 first.
using ByteTag = hn::CappedTag<uint8_t, 64>;
using HalfTag = hn::Repartition<uint16_t, ByteTag>;
using WordTag = hn::Repartition<uint64_t, ByteTag>;
using ByteVec = hn::Vec<ByteTag>;
using HalfVec = hn::Vec<HalfTag>;
using IntTag = hn::Repartition<int32_t, ByteTag>;
using ScoreTag = hn::Repartition<float, ByteTag>;

constexpr int kVectors = 8;
constexpr int kBytes = static_cast<int>(hn::MaxLanes(ByteTag()));
constexpr int kTokens = kBytes / 8;  // of a vector
constexpr int kPlacesPerWord = 16 * kBytes;

// Where the codes of eight vectors of tokens lie.
struct Unit {
  const uint64_t* codes[kVectors];  // of word 0; words are block_size apart
  const uint16_t* factors[kVectors];
};

// v[i][j] <-> v[j][i] of 16-bit pieces, in each lane of 128 bits.
template <class D, class V = hn::Vec<D>>
HWY_INLINE void transpose(D d16, V (&v)[8]) {
  const hn::Repartition<uint32_t, D> d32;
  const hn::Repartition<uint64_t, D> d64;
  V a[8], b[8];
  HWY_UNROLL(8)
  for (int i = 0; i < 4; ++i) {
    a[i] = hn::InterleaveLower(d16, v[2 * i], v[2 * i + 1]);  // pieces 0 to 3
    a[4 + i] = hn::InterleaveUpper(d16, v[2 * i], v[2 * i + 1]);
  }
  HWY_UNROLL(8)
  for (int i = 0; i < 8; i += 2) {
    const auto x = hn::BitCast(d32, a[i]), y = hn::BitCast(d32, a[i + 1]);
    b[i] = hn::BitCast(d16, hn::InterleaveLower(d32, x, y));  // of vectors 4 (i % 4) / 2 on
    b[i + 1] = hn::BitCast(d16, hn::InterleaveUpper(d32, x, y));
  }
  HWY_UNROLL(8)
  for (int half = 0; half < 8; half += 4) {
    HWY_UNROLL(8)
    for (int i = 0; i < 2; ++i) {
      const auto x = hn::BitCast(d64, b[half + i]), y = hn::BitCast(d64, b[half + 2 + i]);
      v[half + 2 * i] = hn::BitCast(d16, hn::InterleaveLower(d64, x, y));
      v[half + 2 * i + 1] = hn::BitCast(d16, hn::InterleaveUpper(d64, x, y));
    }
  }
}

// One word of a unit's codes as the places that the tables are looked up at: [16 nibbles] vectors.
HWY_INLINE void split_codes(const Unit& unit, int64_t word_offset, uint8_t* HWY_RESTRICT places) {
  const ByteTag d8;
  const HalfTag d16;
  alignas(16) static constexpr uint8_t kPairs[16] = {0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15};
  const ByteVec pairs = hn::LoadDup128(d8, kPairs), low = hn::Set(d8, uint8_t{15});
  HalfVec v[kVectors];
  HWY_UNROLL(8)
  for (int i = 0; i < kVectors; ++i) {
    const ByteVec codes = hn::LoadU(d8, reinterpret_cast<const uint8_t*>(unit.codes[i] + word_offset));
    v[i] = hn::BitCast(d16, hn::TableLookupBytes(codes, pairs));
  }
  transpose(d16, v);
  HWY_UNROLL(8)
  for (int i = 0; i < kVectors; ++i) {
    hn::Store(hn::And(hn::BitCast(d8, v[i]), low), d8, places + 2 * i * kBytes);
    hn::Store(hn::And(hn::BitCast(d8, hn::ShiftRight<4>(v[i])), low), d8, places + (2 * i + 1) * kBytes);
  }
}

// D of a unit's tokens to one query: piece i of a lane is of vector i, the first token of the lane's two in `even`.
HWY_INLINE void distances(const uint8_t* HWY_RESTRICT places, const uint8_t* HWY_RESTRICT tables, int words, HalfVec& even,
                          HalfVec& odd) {
  const ByteTag d8;
  const HalfTag d16;
  const auto look_up = [&](int at) HWY_ATTR {
    return hn::TableLookupBytes(hn::LoadDup128(d8, tables + at * kTableBytes), hn::Load(d8, places + at * kBytes));
  };
  const HalfVec low = hn::Set(d16, uint16_t{255});
  even = odd = hn::Zero(d16);
  for (int at = 0; at < 16 * words; at += 8) {
    ByteVec sum = look_up(at);  // a nibble gives at most 28: eight of them fit a byte
    HWY_UNROLL(7)
    for (int i = 1; i < 8; ++i) sum = hn::Add(sum, look_up(at + i));
    even = hn::Add(even, hn::And(hn::BitCast(d16, sum), low));
    odd = hn::Add(odd, hn::ShiftRight<8>(hn::BitCast(d16, sum)));
  }
}

// op over the lanes of 128 bits.
template <class D, class V, class Op>
HWY_INLINE auto fold_lanes(D d, V v, const Op& op) {
  if constexpr (hn::MaxLanes(D()) * sizeof(hn::TFromD<D>) > 16) {
    const hn::Half<D> half;
    return fold_lanes(half, op(hn::LowerHalf(half, v), hn::UpperHalf(half, v)), op);
  } else {
    return v;
  }
}

using Int4 = hn::Full128<int32_t>;
using Float4 = hn::Full128<float>;
using FloatVec4 = hn::Vec<Float4>;

// The lower and the upper 16 of each 32 bits, as integers.
template <class D32, class V>
HWY_INLINE auto lower(D32 di, V v) {
  return hn::And(hn::BitCast(di, v), hn::Set(di, 0xffff));
}
template <class D32, class V>
HWY_INLINE auto upper(D32 di, V v) {
  const hn::RebindToUnsigned<D32> du;
  return hn::BitCast(di, hn::ShiftRight<16>(hn::BitCast(du, v)));
}

// float(A - 2 D)
template <class D32, class V>
HWY_INLINE auto signed_sums(D32 di, V distance, int32_t sum) {
  return hn::ConvertTo(hn::RebindToFloat<D32>(), hn::Sub(hn::Set(di, sum), hn::Add(distance, distance)));
}

// The best scores of each vector of a unit so far: of vectors 0, 2, 4, 6 and of 1, 3, 5, 7.
struct Best {
  FloatVec4 even, odd;
};

// Where all keys count alike the nearest token of a vector is its best.
HWY_INLINE void take_nearest(HalfVec even, HalfVec odd, const QueryScale& scale, Best& best) {
  const Int4 di;
  const auto nearest = fold_lanes(HalfTag(), hn::Min(even, odd), [](auto a, auto b) HWY_ATTR { return hn::Min(a, b); });
  const auto weight = hn::Set(Float4(), scale.weight);
  best.even = hn::Max(best.even, hn::Mul(signed_sums(di, lower(di, nearest), scale.sum), weight));
  best.odd = hn::Max(best.odd, hn::Mul(signed_sums(di, upper(di, nearest), scale.sum), weight));
}

// `factors`: of the even and the odd tokens, as the distances lie.
HWY_INLINE void take_longest(HalfVec even, HalfVec odd, const HalfVec (&factors)[2], const QueryScale& scale, Best& best) {
  const IntTag di;
  const ScoreTag df;
  const hn::RebindToUnsigned<IntTag> du;
  const auto greatest = [](auto a, auto b) HWY_ATTR { return hn::Max(a, b); };
  const auto low_factor = [&](HalfVec f) HWY_ATTR { return hn::BitCast(df, hn::ShiftLeft<16>(hn::BitCast(du, f))); };
  const auto high_factor = [&](HalfVec f)
                               HWY_ATTR { return hn::BitCast(df, hn::And(hn::BitCast(du, f), hn::Set(du, 0xffff0000u))); };
  const auto low = hn::Max(hn::Mul(signed_sums(di, lower(di, even), scale.sum), low_factor(factors[0])),
                           hn::Mul(signed_sums(di, lower(di, odd), scale.sum), low_factor(factors[1])));
  const auto high = hn::Max(hn::Mul(signed_sums(di, upper(di, even), scale.sum), high_factor(factors[0])),
                            hn::Mul(signed_sums(di, upper(di, odd), scale.sum), high_factor(factors[1])));
  const auto weight = hn::Set(Float4(), scale.weight);
  best.even = hn::Max(best.even, hn::Mul(fold_lanes(df, low, greatest), weight));
  best.odd = hn::Max(best.odd, hn::Mul(fold_lanes(df, high, greatest), weight));
}

// Length factors of a unit as its distances lie.
HWY_INLINE void load_factors(const Unit& unit, HalfVec (&factors)[2]) {
  const hn::Full128<uint16_t> d;
  hn::Vec<decltype(d)> rows[8];
  for (int i = 0; i < kVectors; ++i) {
    alignas(16) uint16_t row[8] = {};
    std::memcpy(row, unit.factors[i], kTokens * sizeof(uint16_t));
    rows[i] = hn::Load(d, row);
  }
  transpose(d, rows);  // row t: token t of each vector
  HWY_ALIGN uint16_t lanes[2][kBytes / 2];
  for (int t = 0; t < kTokens; ++t) hn::Store(rows[t], d, lanes[t % 2] + t / 2 * 8);
  for (int i = 0; i < 2; ++i) factors[i] = hn::Load(HalfTag(), lanes[i]);
}

// best[i] of vector i of a unit over the queries of a head.
template <bool kFactors>
HWY_INLINE void score_unit(const AsymmetricScan& s, const Unit& unit, int head, uint8_t* HWY_RESTRICT places,
                           float* HWY_RESTRICT best) {
  const Float4 df;
  for (int w = 0; w < s.words; ++w) {
    split_codes(unit, static_cast<int64_t>(w) * s.block_size, places + w * kPlacesPerWord);
  }
  HalfVec factors[2], even, odd;
  if (kFactors) load_factors(unit, factors);
  const auto none = hn::Set(df, -std::numeric_limits<float>::infinity());
  Best scores{none, none};
  const int64_t first = int64_t{head} * s.queries_per_head;
  const uint8_t* tables = s.tables + first * s.words * kTableBytesPerWord;
  for (int q = 0; q < s.queries_per_head; ++q, tables += s.words * kTableBytesPerWord) {
    distances(places, tables, s.words, even, odd);
    if constexpr (kFactors) {
      take_longest(even, odd, factors, s.scales[first + q], scores);
    } else {
      take_nearest(even, odd, s.scales[first + q], scores);
    }
  }
  hn::StoreInterleaved2(scores.even, scores.odd, df, best);
}

constexpr int kPrefetchUnits = 6;  // units of a head ahead: a memory latency

HWY_INLINE void prefetch_blocks(const AsymmetricScan& s, int32_t begin, int32_t end, int head, int bytes) {
  for (int32_t b = begin; b < end; ++b) {
    const auto* line = reinterpret_cast<const uint8_t*>(block_codes(s, b, head));
    for (int i = 0; i < bytes; i += 64) hwy::Prefetch(line + i);
  }
}

// A unit of whole blocks, `per_block` vectors each; the last one stands for those beyond `count`. scores: [kVectors / per_block].
template <bool kFactors>
HWY_INLINE void score_small_blocks(const AsymmetricScan& s, int32_t block, int32_t count, int per_block, int head,
                                   uint8_t* HWY_RESTRICT places, float* HWY_RESTRICT scores) {
  Unit unit;
  for (int at = 0, i = 0; i < kVectors; ++at) {
    const uint64_t* codes = block_codes(s, block + std::min(at, count - 1), head);
    for (int v = 0; v < per_block; ++v, ++i) {
      unit.codes[i] = codes + v * kTokens;
      if (kFactors) unit.factors[i] = factors_of(s, codes) + v * kTokens;
    }
  }
  score_unit<kFactors>(s, unit, head, places, scores);
  for (int n = kVectors / 2; per_block > 1; n /= 2, per_block /= 2) {
    for (int i = 0; i < n; ++i) scores[i] = std::max(scores[2 * i], scores[2 * i + 1]);
  }
}

// A block of one unit or several.
template <bool kFactors>
HWY_INLINE float score_large_block(const AsymmetricScan& s, int32_t block, int head, uint8_t* HWY_RESTRICT places) {
  const uint64_t* codes = block_codes(s, block, head);
  float best = -std::numeric_limits<float>::infinity();
  for (int first = 0; first < s.block_size; first += kVectors * kTokens) {
    Unit unit;
    for (int i = 0; i < kVectors; ++i) {
      unit.codes[i] = codes + first + i * kTokens;
      if (kFactors) unit.factors[i] = factors_of(s, codes) + first + i * kTokens;
    }
    float scores[kVectors];
    score_unit<kFactors>(s, unit, head, places, scores);
    for (const float score : scores) best = std::max(best, score);
  }
  return best;
}

// Blocks [begin, end), all of them whole.
template <bool kFactors>
HWY_INLINE void scan_whole(const AsymmetricScan& s, int32_t begin, int32_t end) {
  HWY_ALIGN uint8_t places[kMaxHashWords * kPlacesPerWord];
  const int per_block = s.block_size / kTokens;            // vectors
  const int32_t step = std::max(1, kVectors / per_block);  // blocks of a unit
  const int32_t blocks = (s.len + s.block_size - 1) / s.block_size;
  const int32_t ahead = step * ((kPrefetchUnits + s.kv_heads - 1) / s.kv_heads);
  const int bytes = s.block_size * (8 * s.words + (kFactors ? 2 : 0));  // of a head's codes
  for (int32_t b = begin; b < end; b += step) {
    const int32_t count = std::min(step, end - b);
    for (int h = 0; h < s.kv_heads; ++h) {
      prefetch_blocks(s, b + ahead, std::min(b + ahead + step, blocks), h, bytes);
      float scores[kVectors];
      if (per_block < kVectors) {
        score_small_blocks<kFactors>(s, b, count, per_block, h, places, scores);
      } else {
        scores[0] = score_large_block<kFactors>(s, b, h, places);
      }
      for (int32_t i = 0; i < count; ++i) put(s, b + i, h, scores[i]);
    }
  }
}

#endif  // HWY_TARGET != HWY_SCALAR

void scan_asymmetric(const AsymmetricScan& s, int32_t begin, int32_t end) {
#if HWY_TARGET != HWY_SCALAR
  const int32_t whole = std::min(end, s.len / s.block_size);
  if (begin < whole) {
    if (s.length_factor) {
      scan_whole<true>(s, begin, whole);
    } else {
      scan_whole<false>(s, begin, whole);
    }
    begin = whole;
  }
#endif
  for (; begin < end; ++begin) {
    const int valid = std::min(s.block_size, s.len - begin * s.block_size);
    for (int h = 0; h < s.kv_heads; ++h) put(s, begin, h, score_tokens(s, block_codes(s, begin, h), h, valid));
  }
}

}  // namespace fovea::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fovea::cpu {

HWY_EXPORT(prepare_query);
HWY_EXPORT(scan_asymmetric);

QueryScale quantize_query(const HashCodec& codec, const float* query, uint8_t* tables) {
  return HWY_DYNAMIC_DISPATCH(prepare_query)(codec, query, tables);
}

void asymmetric_scan(const AsymmetricScan& s, int32_t begin, int32_t end) {
  FOVEA_CHECK(s.words >= 1 && s.words <= kMaxHashWords);
  FOVEA_CHECK(s.block_size >= 8 && std::has_single_bit(static_cast<uint32_t>(s.block_size)));
  HWY_DYNAMIC_DISPATCH(scan_asymmetric)(s, begin, end);
}

}  // namespace fovea::cpu
#endif  // HWY_ONCE
