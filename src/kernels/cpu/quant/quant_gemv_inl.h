// What the forms of quant_gemv for instruction sets share. Each includes it where it has switched those on, and has its own copy.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "kernels/cpu/quant/quant_gemv.h"

#define FOVEA_INLINE inline __attribute__((always_inline))

namespace fovea::cpu {
namespace {

template <WeightType kType>
constexpr bool kHasOffsets = kType == WeightType::q4_1 || kType == WeightType::q5_1 || kType == WeightType::q2_k ||
                             kType == WeightType::q4_k || kType == WeightType::q5_k || kType == WeightType::int4;

FOVEA_INLINE uint16_t load_u16(const uint8_t* p) {
  uint16_t v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
FOVEA_INLINE uint32_t load_u32(const uint8_t* p) {
  uint32_t v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
FOVEA_INLINE float half_at(const uint8_t* p) { return _cvtsh_ss(load_u16(p)); }

// Float16 numbers of eight blocks that are `stride` bytes apart.
template <int kStride>
FOVEA_INLINE __m256 eight_halves(const uint8_t* p) {
  // Put together by the integer units: the vector units are what limits.
  const auto four = [p](int i) {
    const auto at = [p, i](int j) { return uint64_t{load_u16(p + (i + j) * kStride)} << (16 * j); };
    return static_cast<int64_t>((at(0) | at(1)) | (at(2) | at(3)));
  };
  return _mm256_cvtph_ps(_mm_set_epi64x(four(4), four(0)));
}

// e8m0 bytes of eight blocks: half of what each stands for. The two smallest, which float32 has no normal number for, are 0.
FOVEA_INLINE __m256 eight_exponents(const uint8_t* b) {
  uint64_t bytes = 0;
  for (int i = 0; i < 8; ++i) bytes |= uint64_t{b[17 * i]} << (8 * i);
  const __m256i e = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(bytes)));
  const __m256i less = _mm256_sub_epi32(_mm256_max_epi32(e, _mm256_set1_epi32(1)), _mm256_set1_epi32(1));
  return _mm256_castsi256_ps(_mm256_slli_epi32(less, 23));
}

// q4_k and q5_k: two float16 numbers and twelve bytes. Eight minimums of 6 bits, then eight scales; the upper two bits of the last four
// of each lie apart.
FOVEA_INLINE __m128i k_minimums_and_scales(__m128i v) {
  const __m128i lower = _mm_srlv_epi32(_mm_shuffle_epi32(v, _MM_SHUFFLE(3, 1, 3, 2)), _mm_setr_epi32(0, 4, 0, 0));
  const __m128i upper = _mm_srli_epi32(_mm_shuffle_epi32(v, _MM_SHUFFLE(1, 1, 2, 2)), 2);
  return _mm_or_si128(_mm_and_si128(lower, _mm_setr_epi32(0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f)),
                      _mm_and_si128(upper, _mm_setr_epi32(0, 0x30303030, 0, 0x30303030)));
}

// The scales of eight parts of a piece, of groups of `group` columns; parts beyond the row take the last.
struct Scales {
  const uint32_t* bits;
  int64_t group, count;
  int shift;  // group is 1 << shift, or -1

  FOVEA_INLINE __m256i of_piece(int64_t begin) const {
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    if (count == 1) return _mm256_set1_epi32(static_cast<int>(bits[0]));
    if (shift >= 0) {
      const int64_t at = begin >> shift;
      const auto left = static_cast<int>(count - at);
      const __m256i there = _mm256_cmpgt_epi32(_mm256_set1_epi32(left), lanes);
      const __m256i some = _mm256_maskload_epi32(reinterpret_cast<const int*>(bits + at), there);
      const __m256i of_lane = _mm256_srl_epi32(_mm256_slli_epi32(lanes, 5), _mm_cvtsi32_si128(shift));
      return _mm256_permutevar8x32_epi32(some, _mm256_min_epi32(of_lane, _mm256_set1_epi32(left - 1)));
    }
    alignas(32) uint32_t parts[8];
    int64_t at = begin / group, next = (at + 1) * group;
    for (int i = 0; i < 8; ++i) {
      if (begin + 32 * i >= next) ++at, next += group;
      parts[i] = bits[at < count ? at : count - 1];
    }
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(parts));
  }
};

// Of row j of W.
FOVEA_INLINE Scales scales_of(const WeightView& w, int64_t j) {
  const int64_t group = w.group, count = w.scales_per_row();
  const int shift = group > 0 && (group & (group - 1)) == 0 ? __builtin_ctzll(static_cast<uint64_t>(group)) : -1;
  return {static_cast<const uint32_t*>(w.scales) + j * count, group, count, shift};
}

constexpr int32_t bytes_of_piece(WeightType type) { return kQuantPiece / weight_format(type).block * weight_format(type).bytes; }

// Asks for the memory behind a piece that is read now, the piece-th from w on: the slower the arithmetic, the further ahead. Whole
// steps of a 1B shape, two threads of Zen 4 that read 58 GB/s, ms: q8_0 without 28.8, 1 KiB ahead 27.5, 2: 38.0, 4: 34.8, 8: 33.3; q4_k
// without 22.7, 1 KiB: 22.9, 2: 25.6, 4: 18.8, 8: 17.2, and with the near lines 16.4. Two rows of W at a time, for one read of x, gain a
// tenth in cache and lose it here.
template <WeightType kType>
FOVEA_INLINE void ask_ahead(const uint8_t* w, int piece) {
  constexpr int32_t kBytes = bytes_of_piece(kType);
  const auto* at = reinterpret_cast<const char*>(w);
  // Lines that begin in this piece, counted from w.
  for (int32_t l = (kBytes * piece + 63) / 64 * 64; l < kBytes * (piece + 1); l += 64) {
    if constexpr (kBytes >= 256) {  // 8 bits
      _mm_prefetch(at + 1024 + l, _MM_HINT_T1);
    } else {
      _mm_prefetch(at + 512 + l, _MM_HINT_T0);
      _mm_prefetch(at + 7168 + l, _MM_HINT_T1);
    }
  }
}

// Calls products(begin, end, m0, rows) for rows [begin, end) of W with rows [m0, m0 + rows) of x, at most kMaxRows of them at once.
template <int kMaxRows, typename Products>
void in_passes(const QuantGemvSlice& s, const Products& products) {
  const int32_t passes = (s.rows + kMaxRows - 1) / kMaxRows;
  const int32_t rows = (s.rows + passes - 1) / passes;  // of a pass; the last may have fewer
  const int64_t step = passes == 1 ? s.w.rows : 1;      // rows of W of a pass: one, where the next pass finds it in cache
  for (int64_t j = 0; j < s.w.rows; j += step) {
    for (int32_t m0 = 0; m0 < s.rows; m0 += rows) products(j, j + step, m0, std::min(rows, s.rows - m0));
  }
}

// Calls fn with the type as an integral_constant.
template <typename Fn, int... kTypes>
void with_type(WeightType type, const Fn& fn, std::integer_sequence<int, kTypes...>) {
  constexpr int kFirst = static_cast<int>(WeightType::q8_0);
  const auto one = [&](auto offset) {
    constexpr auto this_type = static_cast<WeightType>(kFirst + decltype(offset)::value);
    if constexpr (quant_gemv_takes(this_type)) {
      if (type == this_type) fn(std::integral_constant<WeightType, this_type>());
    }
  };
  (one(std::integral_constant<int, kTypes>()), ...);
}
template <typename Fn>
void with_type(WeightType type, const Fn& fn) {
  with_type(type, fn, std::make_integer_sequence<int, kWeightTypes - static_cast<int>(WeightType::q8_0)>());
}

}  // namespace
}  // namespace fovea::cpu
