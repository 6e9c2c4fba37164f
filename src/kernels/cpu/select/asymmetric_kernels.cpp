#include "kernels/cpu/select/asymmetric_kernels.h"

#include <algorithm>
#include <array>
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
#include "kernels/cpu/select/asymmetric_bytes_inl.h"
#include "kernels/cpu/select/asymmetric_scan_inl.h"
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
  for (int i = 0; i < n; i += 32) {
    for (int j = 0; j < std::min(32, n - i); ++j) squares[j] += double{query[i + j]} * query[i + j];  // exact, fused or not
  }
  for (int half = 16; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) squares[i] += squares[i + half];
  }
  return std::sqrt(squares[0]);
}

QueryScale prepare_query(const HashCodec& codec, const float* query, bool narrow, uint8_t* tables) {
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
  out.bytes = true;
  for (int i = 0; i < codec.bits; i += 64, tables += kTableBytesPerWord) {
    int32_t sum = 0;
    for (int j = i; j < i + 64; ++j) sum += std::abs(q4[j]);
    out.sum += sum;
    out.bytes = out.bytes && sum < 256;
    put_tables(q4 + i, narrow, tables);
  }
  return out;
}

// ---- Scan -------------------------------------------------------------------------------------------------

// Any block, token by token.
HWY_INLINE void scan_tokens(const AsymmetricScan& s, int32_t block) {
  const int valid = std::min(s.block_size, s.len - block * s.block_size);
  for (int h = 0; h < s.kv_heads; ++h) {
    const int32_t rank = rank_of(score_tokens(s, block_codes(s, block, h), h, valid));
    put(s, block, h, &rank, 1);
  }
}

#if HWY_TARGET != HWY_SCALAR && !FOVEA_BYTE_TABLES

// Eight vectors of tokens are scored together. Each lane of 128 bits has two tokens of each, and is looked up on its own:
// transposed, it holds one byte of its 16 tokens, two neighbours of vector 0 first.
using ByteTag = hn::CappedTag<uint8_t, 64>;
using HalfTag = hn::Repartition<uint16_t, ByteTag>;
using WordTag = hn::Repartition<uint64_t, ByteTag>;
using ByteVec = hn::Vec<ByteTag>;
using HalfVec = hn::Vec<HalfTag>;
using WideTag = hn::Repartition<uint32_t, ByteTag>;
using IntTag = hn::Repartition<int32_t, ByteTag>;
using ScoreTag = hn::Repartition<float, ByteTag>;
using ScoreVec = hn::Vec<ScoreTag>;

constexpr int kVectors = 8;
constexpr int kBytes = static_cast<int>(hn::MaxLanes(ByteTag()));
constexpr int kTokens = kBytes / 8;  // of a vector
constexpr int kPlacesPerWord = 16 * kBytes;
// As many units as a vector has lanes of 128 bits make a group: their sums over lanes are taken together.
constexpr int kUnits = kBytes / 16, kGroupVectors = kUnits * kVectors, kGroupTokens = kGroupVectors * kTokens;

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

// D of the tokens of each unit to one query: piece i of a lane is of vector i, the first token of the lane's two in `even`.
struct Distances {
  HalfVec even[kUnits], odd[kUnits];
};

// Bytes hold the sums over kNibbles nibbles. A table is loaded once for all units.
template <int kNibbles>
HWY_INLINE void sum_nibbles(const uint8_t* HWY_RESTRICT places, const uint8_t* HWY_RESTRICT tables, int words, Distances& to) {
  const ByteTag d8;
  const HalfTag d16;
  const HalfVec low = hn::Set(d16, uint16_t{255});
  for (int u = 0; u < kUnits; ++u) to.even[u] = to.odd[u] = hn::Zero(d16);
  for (int at = 0; at < 16 * words; at += kNibbles) {
    ByteVec sum[kUnits];
    for (int u = 0; u < kUnits; ++u) sum[u] = hn::Zero(d8);
    HWY_UNROLL(16)
    for (int i = at; i < at + kNibbles; ++i) {
      const ByteVec table = hn::LoadDup128(d8, tables + i / 16 * kTableBytesPerWord + i % 16 * kTableBytes);
      for (int u = 0; u < kUnits; ++u) {
        sum[u] = hn::Add(sum[u], hn::TableLookupBytes(table, hn::Load(d8, places + (u * 16 * words + i) * kBytes)));
      }
    }
    for (int u = 0; u < kUnits; ++u) {
      to.even[u] = hn::Add(to.even[u], hn::And(hn::BitCast(d16, sum[u]), low));
      to.odd[u] = hn::Add(to.odd[u], hn::ShiftRight<8>(hn::BitCast(d16, sum[u])));
    }
  }
}
HWY_INLINE void distances(const AsymmetricScan& s, int64_t query, const uint8_t* HWY_RESTRICT places, Distances& to) {
  const uint8_t* tables = s.tables + query * s.words * kTableBytesPerWord;
  // No sum is more than A, and a nibble gives at most 28.
  if (s.scales[query].sum < 256) return sum_nibbles<16>(places, tables, s.words, to);
  sum_nibbles<8>(places, tables, s.words, to);
}

// Lane u of 128 bits: op over the lanes of v[u].
template <class D, class V, class Op>
HWY_INLINE V fold_lanes(D d, const V (&v)[kUnits], const Op& op) {
  constexpr size_t kLanes = hn::MaxLanes(D()) * sizeof(hn::TFromD<D>) / 16;
  static_assert(kLanes == kUnits && (kLanes == 1 || kLanes == 2 || kLanes == 4));
  const auto halves = [&](V a, V b) HWY_ATTR { return op(hn::ConcatLowerLower(d, b, a), hn::ConcatUpperUpper(d, b, a)); };
  if constexpr (kLanes == 4) {
    const V a = halves(v[0], v[2]), b = halves(v[1], v[3]);
    return op(hn::OddEvenBlocks(b, a), hn::SwapAdjacentBlocks(hn::OddEvenBlocks(a, b)));
  } else if constexpr (kLanes == 2) {
    return halves(v[0], v[1]);
  } else {
    return v[0];
  }
}

// float(A - 2 D), D the lower and the upper 16 of each 32 bits. Every step is exact.
struct SignedSums {
  ScoreVec sum, minus_two = hn::Set(ScoreTag(), -2.0f);
  explicit HWY_INLINE SignedSums(int32_t a) : sum(hn::Set(ScoreTag(), static_cast<float>(a))) {}

  HWY_INLINE ScoreVec lower(HalfVec distance) const {
    const IntTag d;
    return of(hn::And(hn::BitCast(d, distance), hn::Set(d, 0xffff)));
  }
  HWY_INLINE ScoreVec upper(HalfVec distance) const {
    return of(hn::BitCast(IntTag(), hn::ShiftRight<16>(hn::BitCast(WideTag(), distance))));
  }
  HWY_INLINE ScoreVec of(hn::Vec<IntTag> distance) const { return hn::MulAdd(hn::ConvertTo(ScoreTag(), distance), minus_two, sum); }
};

// Length factors of a unit: of lane l and place j, those of vector 2 j's two tokens in lane l, and of the vector after it.
struct Factors {
  ScoreVec even[2], odd[2];  // [first or second token]
};

// Places of pairs of factors in the first half of a unit's, `vector` of them behind; j counts to 2, and again.
constexpr std::array<int32_t, kBytes / 4> pair_places(int vector) {
  std::array<int32_t, kBytes / 4> places{};
  for (int i = 0; i < kBytes / 4; ++i) places[i] = (i % 2 * 2 + vector) * (kTokens / 2) + i / 4;
  return places;
}

HWY_INLINE Factors load_factors(const Unit& unit) {
  const WideTag d;
  const ScoreTag df;
  static constexpr auto kEven = pair_places(0), kOdd = pair_places(1);
  HWY_ALIGN uint16_t all[kVectors * kTokens];
  for (int i = 0; i < kVectors; ++i) std::memcpy(all + i * kTokens, unit.factors[i], kTokens * sizeof(uint16_t));
  const auto front = hn::BitCast(d, hn::Load(HalfTag(), all)), back = hn::BitCast(d, hn::Load(HalfTag(), all + kBytes / 2));
  const auto pairs_of = [&](const int32_t* places) HWY_ATTR {
    const auto from = hn::SetTableIndices(d, places);
    const hn::Repartition<uint64_t, WideTag> d64;
    return hn::BitCast(d, hn::InterleaveLower(d64, hn::BitCast(d64, hn::TableLookupLanes(front, from)),
                                              hn::BitCast(d64, hn::TableLookupLanes(back, from))));
  };
  const auto even = pairs_of(kEven.data()), odd = pairs_of(kOdd.data()), high = hn::Set(d, 0xffff0000u);
  return {{hn::BitCast(df, hn::ShiftLeft<16>(even)), hn::BitCast(df, hn::And(even, high))},
          {hn::BitCast(df, hn::ShiftLeft<16>(odd)), hn::BitCast(df, hn::And(odd, high))}};
}

// Where the codes of a group's blocks lie.
struct Group {
  const uint64_t* codes[kGroupVectors];

  // Of `blocks` blocks from `block` on; the one before `end` stands for those from there on.
  HWY_INLINE void find(const AsymmetricScan& s, int32_t block, int32_t end, int32_t blocks, int head) {
    for (int32_t i = 0; i < blocks; ++i) codes[i] = block_codes(s, std::min(block + i, end - 1), head);
  }
  // The same of the next head.
  HWY_INLINE void move(const AsymmetricScan& s, int32_t block, int32_t end, int32_t blocks, int head) {
    if (s.slot_head_stride != 0) return find(s, block, end, blocks, head);
    for (int32_t i = 0; i < blocks; ++i) codes[i] += s.head_stride;
  }
};

// A group that comes later. Its codes are fetched in parts, between the queries that score another: a core has few lines under way.
struct Ahead {
  static constexpr int kParts = 4;
  Group group;
  int32_t blocks = 0;
  int bytes = 0;  // of a block's codes

  HWY_INLINE void fetch(int first_part, int end_part) const {
    for (int32_t i = blocks * first_part / kParts; i < blocks * end_part / kParts; ++i) {
      for (int at = 0; at < bytes; at += 64) hwy::Prefetch(reinterpret_cast<const uint8_t*>(group.codes[i]) + at);
    }
  }
  // Between query number q of `count` and the next.
  HWY_INLINE void fetch_at(int64_t q, int64_t count) const {
    if (q < kParts) fetch(static_cast<int>(q), q == count - 1 ? kParts : static_cast<int>(q) + 1);
  }
};

// Best scores: lane u of 128 bits has those of vectors 0, 2, 4, 6 of unit u, and of 1, 3, 5, 7.
struct Best {
  ScoreVec even, odd;
};

// Where all keys count alike the nearest token of a vector is its best.
HWY_INLINE Best score_alike(const AsymmetricScan& s, const Ahead& ahead, const uint8_t* HWY_RESTRICT places, int64_t first_query) {
  const auto least = [](HalfVec a, HalfVec b) HWY_ATTR { return hn::Min(a, b); };
  const ScoreVec none = hn::Set(ScoreTag(), -std::numeric_limits<float>::infinity());
  Best best{none, none};
  for (int64_t q = first_query; q < first_query + s.queries_per_head; ++q) {
    ahead.fetch_at(q - first_query, s.queries_per_head);
    Distances distance;
    distances(s, q, places, distance);
    HalfVec nearest[kUnits];
    for (int u = 0; u < kUnits; ++u) nearest[u] = hn::Min(distance.even[u], distance.odd[u]);
    const HalfVec folded = fold_lanes(HalfTag(), nearest, least);
    const SignedSums sums(s.scales[q].sum);
    const ScoreVec weight = hn::Set(ScoreTag(), s.scales[q].weight);
    best.even = hn::Max(best.even, hn::Mul(sums.lower(folded), weight));
    best.odd = hn::Max(best.odd, hn::Mul(sums.upper(folded), weight));
  }
  return best;
}

HWY_INLINE Best score_by_length(const AsymmetricScan& s, const Ahead& ahead, const Unit (&units)[kUnits],
                                const uint8_t* HWY_RESTRICT places, int64_t first_query) {
  const ScoreTag df;
  const auto greatest = [](ScoreVec a, ScoreVec b) HWY_ATTR { return hn::Max(a, b); };
  Factors factors[kUnits];
  ScoreVec even_best[kUnits], odd_best[kUnits];
  for (int u = 0; u < kUnits; ++u) {
    factors[u] = load_factors(units[u]);
    even_best[u] = odd_best[u] = hn::Set(df, -std::numeric_limits<float>::infinity());
  }
  for (int64_t q = first_query; q < first_query + s.queries_per_head; ++q) {
    ahead.fetch_at(q - first_query, s.queries_per_head);
    Distances to;
    distances(s, q, places, to);
    const SignedSums sums(s.scales[q].sum);
    const ScoreVec weight = hn::Set(df, s.scales[q].weight);
    for (int u = 0; u < kUnits; ++u) {
      const ScoreVec(&even)[2] = factors[u].even, (&odd)[2] = factors[u].odd;
      const ScoreVec lower = hn::Max(hn::Mul(sums.lower(to.even[u]), even[0]), hn::Mul(sums.lower(to.odd[u]), even[1]));
      const ScoreVec upper = hn::Max(hn::Mul(sums.upper(to.even[u]), odd[0]), hn::Mul(sums.upper(to.odd[u]), odd[1]));
      even_best[u] = hn::Max(even_best[u], hn::Mul(lower, weight));
      odd_best[u] = hn::Max(odd_best[u], hn::Mul(upper, weight));
    }
  }
  return {fold_lanes(df, even_best, greatest), fold_lanes(df, odd_best, greatest)};
}

// rank_of, lane by lane.
HWY_INLINE hn::Vec<IntTag> ranks_of(ScoreVec score) {
  const IntTag d;
  const auto bits = hn::BitCast(d, hn::Add(score, hn::Zero(ScoreTag())));
  return hn::Not(hn::Xor(bits, hn::And(hn::BroadcastSignBit(bits), hn::Set(d, 0x7fffffff))));
}

// Ranks of a group's blocks, or of tokens [first, first + kGroupTokens) of its only one. ranks: [kGroupVectors].
template <bool kFactors>
HWY_INLINE void rank_group(const AsymmetricScan& s, const Group& group, const Ahead& ahead, int first, int head,
                           uint8_t* HWY_RESTRICT places, int32_t* HWY_RESTRICT ranks) {
  Unit units[kUnits];
  const int shift = std::countr_zero(static_cast<uint32_t>(s.block_size)), mask = s.block_size - 1;
  for (int v = 0, at = first; v < kGroupVectors; ++v, at += kTokens) {
    const uint64_t* codes = group.codes[first > 0 ? 0 : at >> shift];
    Unit& unit = units[v / kVectors];
    unit.codes[v % kVectors] = codes + (at & mask);
    if (kFactors) unit.factors[v % kVectors] = factors_of(s, codes) + (at & mask);
  }
  for (int u = 0; u < kUnits; ++u) {
    for (int w = 0; w < s.words; ++w) {
      split_codes(units[u], static_cast<int64_t>(w) * s.block_size, places + (u * s.words + w) * kPlacesPerWord);
    }
  }
  const int64_t first_query = int64_t{head} * s.queries_per_head;
  const Best best = kFactors ? score_by_length(s, ahead, units, places, first_query) : score_alike(s, ahead, places, first_query);
  const IntTag d;
  if (s.block_size == kTokens) return hn::StoreInterleaved2(ranks_of(best.even), ranks_of(best.odd), d, ranks);
  hn::StoreU(ranks_of(hn::Max(best.even, best.odd)), d, ranks);
  int n = kGroupVectors / 2;
  for (int size = 2 * kTokens; size < s.block_size && n > 1; size *= 2) {
    n /= 2;
    for (int i = 0; i < n; ++i) ranks[i] = std::min(ranks[2 * i], ranks[2 * i + 1]);
  }
}

constexpr int kPrefetchGroups = 3;  // of a head ahead: a memory latency

// Blocks [begin, end), all of them whole.
template <bool kFactors>
HWY_INLINE void scan_groups(const AsymmetricScan& s, int32_t begin, int32_t end) {
  HWY_ALIGN uint8_t places[kUnits * kMaxHashWords * kPlacesPerWord];
  const int32_t step = std::max(1, kGroupTokens / s.block_size);  // blocks of a group
  const int32_t blocks = (s.len + s.block_size - 1) / s.block_size;
  const int32_t ahead = step * ((kPrefetchGroups + s.kv_heads - 1) / s.kv_heads);
  Group group;
  Ahead next;
  next.bytes = s.block_size * (8 * s.words + (kFactors ? 2 : 0));
  for (int32_t b = begin; b < end; b += step) {
    const int32_t count = std::min(step, end - b);
    next.blocks = std::clamp(blocks - b - ahead, 0, step);
    for (int h = 0; h < s.kv_heads; ++h) {
      if (h == 0) {
        group.find(s, b, end, step, 0);
        next.group.find(s, b + ahead, blocks, next.blocks, 0);
      } else {
        group.move(s, b, end, step, h);
        next.group.move(s, b + ahead, blocks, next.blocks, h);
      }
      int32_t ranks[kGroupVectors], more[kGroupVectors];
      rank_group<kFactors>(s, group, next, 0, h, places, ranks);
      for (int first = kGroupTokens; first < s.block_size; first += kGroupTokens) {
        rank_group<kFactors>(s, group, next, first, h, places, more);
        ranks[0] = std::min(ranks[0], more[0]);
      }
      put(s, b, h, ranks, count);
    }
  }
}

HWY_INLINE void scan_whole(const AsymmetricScan& s, int32_t begin, int32_t end) {
  s.length_factor ? scan_groups<true>(s, begin, end) : scan_groups<false>(s, begin, end);
}

#elif HWY_TARGET == HWY_SCALAR

HWY_INLINE void scan_whole(const AsymmetricScan& s, int32_t begin, int32_t end) {
  for (; begin < end; ++begin) scan_tokens(s, begin);
}

#endif

void scan_asymmetric(const AsymmetricScan& s, BlockSource& source) {
  const int32_t whole = s.len / s.block_size;
  bool rest = false;  // the block that is not whole was among those taken
#if FOVEA_BYTE_TABLES
  rest = bytes::scan_whole(s, source);
#else
  constexpr int32_t kRangeBlocks = 128;  // few ranges: the first blocks of each are not fetched ahead
  for (BlockRange r = source.take(kRangeBlocks); r.count() > 0; r = source.take(kRangeBlocks)) {
    rest = rest || r.end > whole;
    scan_whole(s, r.begin, std::min(r.end, whole));
  }
#endif
  if (rest) scan_tokens(s, whole);
}

}  // namespace fovea::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fovea::cpu {

HWY_EXPORT(prepare_query);
HWY_EXPORT(scan_asymmetric);

QueryScale quantize_query(const HashCodec& codec, const float* query, bool narrow, uint8_t* tables) {
  return HWY_DYNAMIC_DISPATCH(prepare_query)(codec, query, narrow, tables);
}

void asymmetric_scan(const AsymmetricScan& s, BlockSource& source) {
  FOVEA_CHECK(s.words >= 1 && s.words <= kMaxHashWords);
  FOVEA_CHECK(s.block_size >= 8 && std::has_single_bit(static_cast<uint32_t>(s.block_size)));
  HWY_DYNAMIC_DISPATCH(scan_asymmetric)(s, source);
}

}  // namespace fovea::cpu
#endif  // HWY_ONCE
