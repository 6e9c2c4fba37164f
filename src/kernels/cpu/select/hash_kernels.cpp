#include "kernels/cpu/select/hash_kernels.h"

#include <algorithm>
#include <cstddef>

#include "base/check.h"
#include "kernels/cpu/select/code_fetch.h"
#include "kernels/cpu/select/fetch_to_write.h"

#define HWY_WANT_AVX3_DL
#include "kernels/cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/select/hash_kernels.cpp"
#include <hwy/foreach_target.h>
//
#include <hwy/cache_control.h>
#include <hwy/highway.h>
#include "kernels/cpu/select/hash_encode_inl.h"

HWY_BEFORE_NAMESPACE();
namespace fovea::cpu::HWY_NAMESPACE {

void encode(const HashCodec& codec, const float* x, uint64_t* words) { encode_hash(codec, x, words); }

// ---- Scan -------------------------------------------------------------------------------------------------

constexpr int kFar = 0x3fff;  // beyond any distance
using WordTag = hn::CappedTag<uint64_t, 8>;
using WordVec = hn::Vec<WordTag>;

// A query's words as the scan wants them: where there is no population count, the nibbles of key ^ query are
// the nibbles of the key xor those of the query, so the keys are split once for all queries of the group.
struct QueryWord {
  uint64_t low;   // low nibbles; the whole word where population count is native
  uint64_t high;  // high nibbles, moved down
};

#undef FOVEA_NATIVE_POPCOUNT  // of the target before
#if HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_SCALAR
#define FOVEA_NATIVE_POPCOUNT 1
#else
#define FOVEA_NATIVE_POPCOUNT 0
#endif

HWY_INLINE QueryWord split(uint64_t word) {
  constexpr uint64_t kNibbles = 0x0f0f0f0f0f0f0f0full;
  return FOVEA_NATIVE_POPCOUNT ? QueryWord{word, 0} : QueryWord{word & kNibbles, (word >> 4) & kNibbles};
}

// Distances fit 32 bits, and a minimum of 64-bit lanes is two instructions or more: the upper halves are
// zero.
HWY_INLINE WordVec least(WordVec a, WordVec b) {
#if HWY_TARGET == HWY_SCALAR
  return hn::Min(a, b);
#else
  const hn::Repartition<uint32_t, WordTag> d32;
  return hn::BitCast(WordTag(), hn::Min(hn::BitCast(d32, a), hn::BitCast(d32, b)));
#endif
}

#if FOVEA_NATIVE_POPCOUNT
constexpr int kVectorsAtOnce = 2;  // for one load of the queries

// Lane by lane the least distance from any of the queries to kVectors vectors of tokens, whose words are
// block_size apart.
template <int kWords, int kQueries, int kVectors>
HWY_INLINE WordVec nearest_query(const uint64_t* HWY_RESTRICT codes, int block_size, const QueryWord* HWY_RESTRICT queries,
                                 int query_count) {
  const WordTag d;
  WordVec keys[kVectors][kWords], nearest[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    for (int w = 0; w < kWords; ++w) {
      keys[v][w] = hn::LoadU(d, codes + w * block_size + v * static_cast<int>(hn::Lanes(d)));
    }
  }
  const auto distance = [&](int v, const QueryWord* HWY_RESTRICT query) HWY_ATTR {
    WordVec sum = hn::PopulationCount(hn::Xor(keys[v][0], hn::Set(d, query[0].low)));
    for (int w = 1; w < kWords; ++w) {
      sum = hn::Add(sum, hn::PopulationCount(hn::Xor(keys[v][w], hn::Set(d, query[w].low))));
    }
    return sum;
  };
  for (int v = 0; v < kVectors; ++v) nearest[v] = distance(v, queries);
  HWY_UNROLL(8)
  for (int q = 1; q < (kQueries > 0 ? kQueries : query_count); ++q) {
    for (int v = 0; v < kVectors; ++v) nearest[v] = least(nearest[v], distance(v, queries + q * kWords));
  }
  for (int v = 1; v < kVectors; ++v) nearest[0] = least(nearest[0], nearest[v]);
  return nearest[0];
}
#else
constexpr int kVectorsAtOnce = 1;  // bound by the vector ports: two were no faster

template <int kWords, int kQueries, int kVectors>
HWY_INLINE WordVec nearest_query(const uint64_t* HWY_RESTRICT codes, int block_size, const QueryWord* HWY_RESTRICT queries,
                                 int query_count) {
  const WordTag d;
  const hn::Repartition<uint8_t, WordTag> d8;
  const WordVec nibbles = hn::Set(d, 0x0f0f0f0f0f0f0f0full);
  alignas(16) static constexpr uint8_t kCounts[16] = {0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4};
  const auto table = hn::LoadDup128(d8, kCounts);
  WordVec low[kWords], high[kWords], nearest = hn::Set(d, kFar);
  for (int w = 0; w < kWords; ++w) {
    const WordVec key = hn::LoadU(d, codes + w * block_size);
    low[w] = hn::And(key, nibbles);
    high[w] = hn::And(hn::ShiftRight<4>(key), nibbles);
  }
  for (int q = 0; q < (kQueries > 0 ? kQueries : query_count); ++q, queries += kWords) {
    auto sum = hn::Zero(d8);  // at most 8 a word: bytes hold the sum of all words, so one SAD a token
    for (int w = 0; w < kWords; ++w) {
      const auto a = hn::BitCast(d8, hn::Xor(low[w], hn::Set(d, queries[w].low)));
      const auto b = hn::BitCast(d8, hn::Xor(high[w], hn::Set(d, queries[w].high)));
      sum = hn::Add(sum, hn::Add(hn::TableLookupBytes(table, a), hn::TableLookupBytes(table, b)));
    }
    nearest = least(nearest, hn::SumsOf8(sum));
  }
  return nearest;
}
#endif

// Lane by lane the least distance from any of the queries to the first `valid` tokens of a block.
template <int kWords, int kQueries>
HWY_INLINE WordVec block_distances(const uint64_t* HWY_RESTRICT codes, int block_size, int valid,
                                   const QueryWord* HWY_RESTRICT queries, int query_count) {
  const WordTag d;
  const int lanes = static_cast<int>(hn::Lanes(d)), step = kVectorsAtOnce * lanes;
  const WordVec far = hn::Set(d, kFar);
  WordVec best = far;
  int t = 0;
  if (valid >= step) {
    best = nearest_query<kWords, kQueries, kVectorsAtOnce>(codes, block_size, queries, query_count);
    for (t = step; t + step <= valid; t += step) {
      best = least(best, nearest_query<kWords, kQueries, kVectorsAtOnce>(codes + t, block_size, queries, query_count));
    }
  }
  for (; t < valid; t += lanes) {
    const WordVec nearest = nearest_query<kWords, kQueries, 1>(codes + t, block_size, queries, query_count);
    best = least(best, hn::IfThenElse(hn::FirstN(d, static_cast<size_t>(valid - t)), nearest, far));
  }
  return best;
}

constexpr int kRun = 4;  // blocks whose distances are summed up together

#if HWY_TARGET != HWY_SCALAR
// The least of each fourth lane of 16 bits.
template <class D, class V>
HWY_INLINE uint64_t least_of_fourths(D d, V v) {
  if constexpr (hn::MaxLanes(D()) > 8) {
    const hn::Half<D> half;
    return least_of_fourths(half, hn::Min(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  } else {
    const hn::Repartition<uint64_t, D> d64;
    return hn::GetLane(hn::BitCast(d64, hn::Min(v, hn::BitCast(d, hn::Shuffle01(hn::BitCast(d64, v))))));
  }
}
#endif

// The least lane of each of four.
HWY_INLINE void store_least(const WordVec (&v)[kRun], uint16_t* to) {
#if HWY_TARGET == HWY_SCALAR
  for (int i = 0; i < kRun; ++i) to[i] = static_cast<uint16_t>(hn::GetLane(v[i]));
#else
  const hn::Repartition<uint16_t, WordTag> d;
  const WordVec all = hn::Or(hn::Or(v[0], hn::ShiftLeft<16>(v[1])), hn::Or(hn::ShiftLeft<32>(v[2]), hn::ShiftLeft<48>(v[3])));
  const uint64_t four = least_of_fourths(d, hn::BitCast(d, all));
  __builtin_memcpy(to, &four, sizeof(four));
#endif
}

constexpr int kMaxQueryWords = 1024;  // [kv_heads, queries_per_head, words] of a scan

constexpr int32_t kRangeBlocks = 32;
static_assert(kRangeBlocks % kRun == 0);

// Ranges of the source, head after head. While one is scored the next one's codes are fetched.
template <int kWords, int kQueries>
HWY_INLINE void scan_ranges(const HashScan& s, const QueryWord* HWY_RESTRICT queries, BlockSource& source) {
  const bool per_head = s.slot_head_stride != 0;
  const uint64_t* codes[kRangeBlocks] = {};
  CodeFetch ahead;
  BlockRange next = source.take(kRangeBlocks);
  while (next.count() > 0) {
    const BlockRange now = next;
    next = source.take(kRangeBlocks);
    const int count = now.count(), runs = (count + kRun - 1) / kRun;
    const QueryWord* HWY_RESTRICT query = queries;
    for (int h = 0; h < s.kv_heads; ++h, query += s.queries_per_head * kWords) {
      uint16_t* to = s.distances + (s.share_heads ? 0 : h * s.distance_stride);
      const bool lower = s.share_heads && h > 0;
      if (!lower && next.count() > 0) fetch_to_write(to + next.begin, next.count() * sizeof(uint16_t));
      // The last block stands for those of a run beyond it.
      for (int i = 0; i < runs * kRun; ++i) codes[i] = block_codes(s, now.begin + std::min(i, count - 1), h);
      if (per_head || h == 0) ahead.find(s, next.begin, std::max(next.count(), 0), 1, h, runs * kRun * (per_head ? 1 : s.kv_heads));
      for (int i = 0; i < count; i += kRun) {
        WordVec nearest[kRun];
        for (int j = 0; j < kRun; ++j) {
          ahead.some();
          const int32_t left = s.len - (now.begin + i + j) * s.block_size, valid = left < s.block_size ? left : s.block_size;
          nearest[j] = block_distances<kWords, kQueries>(codes[i + j], s.block_size, valid, query, s.queries_per_head);
        }
        uint16_t least[kRun];
        store_least(nearest, least);
        uint16_t* at = to + now.begin + i;
        for (int j = 0; j < std::min(count - i, kRun); ++j) at[j] = lower && at[j] < least[j] ? at[j] : least[j];
      }
    }
  }
}

// Groups of four queries are common, and worth a loop without a loop inside.
template <int kWords>
HWY_INLINE void scan_words(const HashScan& s, const QueryWord* HWY_RESTRICT queries, BlockSource& source) {
  if (s.queries_per_head == 4) return scan_ranges<kWords, 4>(s, queries, source);
  scan_ranges<kWords, 0>(s, queries, source);
}

void scan(const HashScan& s, BlockSource& source) {
  QueryWord queries[kMaxQueryWords];
  const int count = s.kv_heads * s.queries_per_head * s.words;
  FOVEA_CHECK(count <= kMaxQueryWords);
  for (int i = 0; i < count; ++i) queries[i] = split(s.queries[i]);
  switch (s.words) {
    case 1:
      return scan_words<1>(s, queries, source);
    case 2:
      return scan_words<2>(s, queries, source);
    case 3:
      return scan_words<3>(s, queries, source);
    case 4:
      return scan_words<4>(s, queries, source);
    default:
      FOVEA_CHECK(false && "words is 1 to 4");
  }
}

// ---- Top-k ------------------------------------------------------------------------------------------------

template <typename T>
using DistanceTag = hn::CappedTag<T, 64 / sizeof(T)>;

// How many of distances[0..count) are < bound.
template <typename T>
HWY_INLINE int32_t count_below(const T* HWY_RESTRICT distances, int32_t count, int64_t bound) {
  const DistanceTag<T> d;
  const int32_t lanes = static_cast<int32_t>(hn::Lanes(d));
  const auto limit = hn::Set(d, static_cast<T>(bound));
  size_t below = 0;
  int32_t i = 0;
  for (; i + lanes <= count; i += lanes) below += hn::CountTrue(d, hn::Lt(hn::LoadU(d, distances + i), limit));
  if (i < count) {
    const auto valid = hn::FirstN(d, static_cast<size_t>(count - i));
    below += hn::CountTrue(d, hn::And(valid, hn::Lt(hn::LoadU(d, distances + i), limit)));
  }
  return static_cast<int32_t>(below);
}

template <class D>
HWY_INLINE uint64_t mask_bits(D d, hn::Mask<D> mask) {
  uint8_t bytes[8] = {};
  hn::StoreMaskBits(d, mask, bytes);
  uint64_t bits;
  __builtin_memcpy(&bits, bytes, 8);
  return bits;
}

// Those in [low, high] to `to`, and up to a vector beyond; how many.
template <typename T>
HWY_INLINE int32_t take_within(const T* HWY_RESTRICT distances, int32_t count, int64_t low, int64_t high, T* HWY_RESTRICT to) {
  const DistanceTag<T> d;
  const int32_t lanes = static_cast<int32_t>(hn::Lanes(d));
  const auto least = hn::Set(d, static_cast<T>(low)), most = hn::Set(d, static_cast<T>(high));
  size_t taken = 0;
  for (int32_t i = 0; i < count; i += lanes) {
    const auto v = hn::LoadU(d, distances + i);
    const auto outside = hn::Or(hn::Lt(v, least), hn::Gt(v, most));
    const auto within = hn::AndNot(outside, hn::FirstN(d, static_cast<size_t>(std::min(lanes, count - i))));
    hn::StoreU(hn::Compress(v, within), d, to + taken);  // to memory straight, a compression takes an AMD core 140 cycles
    taken += hn::CountTrue(d, within);
  }
  return static_cast<int32_t>(taken);
}

constexpr int kFew = 256;

// Distances are integers: the keep-th least is found by halving the range of values, one counting sweep
// each, and one more sweep writes out what lies below it and the first of those equal to it. O(count), no
// sort. A range of 32 bits is seldom halved to its end: a threshold with `keep` below it will do; and once few
// are within the range, only those are counted. None is below `low`.
template <typename T>
HWY_INLINE void topk(const T* distances, int32_t count, int32_t keep, int64_t low, int64_t high, int32_t first, int32_t* units) {
  HWY_ALIGN T few[kFew + 64 / sizeof(T)];
  const T* from = distances;
  int32_t from_count = count, before = 0;  // how many there are, and how many distances are below them all
  int32_t below = 0, upto = count;         // of distances < low, and <= high
  while (low < high && below != keep) {    // the threshold: the least t with count(<= t) >= keep
    if (from == distances && upto - below <= kFew) {
      from_count = take_within(distances, count, low, high, few);
      from = few, before = below;
    }
    const int64_t middle = low + (high - low) / 2;
    const int32_t within = before + count_below(from, from_count, middle + 1);
    if (within > keep) {
      high = middle, upto = within;
    } else {
      low = middle + 1, below = within;
    }
  }
  int32_t equal_left = keep - below;
  const DistanceTag<T> d;
  const int32_t lanes = static_cast<int32_t>(hn::Lanes(d));
  const auto limit = hn::Set(d, static_cast<T>(low));
  int32_t* const end = units + keep;
  for (int32_t i = 0; units != end; i += lanes) {
    const auto v = hn::LoadU(d, distances + i);
    uint64_t valid = count - i < lanes ? (uint64_t{1} << (count - i)) - 1 : ~uint64_t{0};
    uint64_t kept = mask_bits(d, hn::Lt(v, limit)) & valid;
    for (uint64_t equal = mask_bits(d, hn::Eq(v, limit)) & valid; equal && equal_left > 0; equal &= equal - 1) {
      kept |= equal & (~equal + 1);
      --equal_left;
    }
    for (; kept; kept &= kept - 1) *units++ = first + i + __builtin_ctzll(kept);
  }
}

void topk_u16(const uint16_t* distances, int32_t count, int32_t keep, int32_t max_distance, int32_t first, int32_t* units) {
  topk(reinterpret_cast<const int16_t*>(distances), count, keep, 0, max_distance, first, units);
}

void topk_i32(const int32_t* distances, int32_t count, int32_t keep, int32_t max_distance, int32_t first, int32_t* units) {
  const DistanceTag<int32_t> d;
  const int32_t lanes = static_cast<int32_t>(hn::Lanes(d));
  auto least = hn::Set(d, distances[0]), most = least;
  int32_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto v = hn::LoadU(d, distances + i);
    least = hn::Min(least, v);
    most = hn::Max(most, v);
  }
  int32_t low = hn::GetLane(hn::MinOfLanes(d, least)), high = hn::GetLane(hn::MaxOfLanes(d, most));
  for (; i < count; ++i) low = std::min(low, distances[i]), high = std::max(high, distances[i]);
  topk(distances, count, keep, low, std::min(high, max_distance), first, units);
}

}  // namespace fovea::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fovea::cpu {

HWY_EXPORT(encode);
HWY_EXPORT(scan);
HWY_EXPORT(topk_u16);
HWY_EXPORT(topk_i32);

void hash_encode(const HashCodec& codec, const float* x, uint64_t* words) { HWY_DYNAMIC_DISPATCH(encode)(codec, x, words); }

void hash_scan(const HashScan& s, BlockSource& source) { HWY_DYNAMIC_DISPATCH(scan)(s, source); }

void hash_topk(const uint16_t* distances, int32_t count, int32_t keep, int32_t max_distance, int32_t first, int32_t* units) {
  FOVEA_CHECK(keep >= 1 && keep <= count);
  HWY_DYNAMIC_DISPATCH(topk_u16)(distances, count, keep, max_distance, first, units);
}

void hash_topk(const int32_t* distances, int32_t count, int32_t keep, int32_t max_distance, int32_t first, int32_t* units) {
  FOVEA_CHECK(keep >= 1 && keep <= count);
  HWY_DYNAMIC_DISPATCH(topk_i32)(distances, count, keep, max_distance, first, units);
}

}  // namespace fovea::cpu
#endif  // HWY_ONCE
