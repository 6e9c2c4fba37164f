// What every way to scan asymmetric codes shares: a query's tables, where codes lie, a block token by token. Once per Highway
// target.
#if defined(FOVEA_KERNELS_CPU_ASYMMETRIC_SCAN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_KERNELS_CPU_ASYMMETRIC_SCAN_INL_H_
#undef FOVEA_KERNELS_CPU_ASYMMETRIC_SCAN_INL_H_
#else
#define FOVEA_KERNELS_CPU_ASYMMETRIC_SCAN_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include <hwy/highway.h>

#include "kernels/common/convert.h"
#include "kernels/cpu/select/asymmetric_kernels.h"
#include "kernels/cpu/select/code_fetch.h"

HWY_BEFORE_NAMESPACE();
namespace fovea::cpu::HWY_NAMESPACE {

// ---- Tables -----------------------------------------------------------------------------------------------

// put_tables: of one word's q4 [64]. distance_of: D of one word of a code. `narrow` as in AsymmetricScan.
#undef FOVEA_BYTE_TABLES  // of the target before
#if HWY_TARGET == HWY_AVX3_DL
#define FOVEA_BYTE_TABLES 1

// A look-up takes one of 128 bytes. Field j < 8 is the low seven bits of byte j, field 8 the top bits of bytes 0 to 6. The last bit is
// left over: the table of field 8 holds its share where it is 0, and is followed by what a 1 takes away of it, 64 times.
struct SevenBits {
  static constexpr int kBits = 7, kFields = 9, kFieldBytes = 128;
  static constexpr bool kLeavesOne = true;
  // The place in a word of bit i of a field; -1: none.
  static constexpr int bit_of(int field, int i) { return field < 8 ? 8 * field + i : 8 * i + 7; }
};
// One of 64. Field j < 8 is the low six bits of byte j, the other three are the two top bits of three bytes each.
struct SixBits {
  static constexpr int kBits = 6, kFields = 11, kFieldBytes = 64;
  static constexpr bool kLeavesOne = false;
  static constexpr int bit_of(int field, int i) {
    if (field < 8) return 8 * field + i;
    const int byte = 3 * (field - 8) + i / 2;
    return byte < 8 ? 8 * byte + 6 + i % 2 : -1;
  }
};

template <class Fields>
HWY_INLINE void put_fields(const int32_t* q4, uint8_t* table) {
  static_assert(kTableBytesPerWord >= Fields::kFields * Fields::kFieldBytes + (Fields::kLeavesOne ? 64 : 0));
  constexpr __mmask64 kValues[6] = {0xaaaaaaaaaaaaaaaa, 0xcccccccccccccccc, 0xf0f0f0f0f0f0f0f0,
                                    0xff00ff00ff00ff00, 0xffff0000ffff0000, 0xffffffff00000000};  // with bit i
  for (int f = 0; f < Fields::kFields; ++f, table += Fields::kFieldBytes) {
    const auto at = [&](int i) { return Fields::bit_of(f, i) < 0 ? 0 : q4[Fields::bit_of(f, i)]; };
    int away = Fields::kLeavesOne && f == Fields::kFields - 1 ? std::max(q4[63], 0) : 0;  // of zeros: the positive ones disagree
    for (int i = 0; i < Fields::kBits; ++i) away += std::max(at(i), 0);
    const auto all = [](int32_t x) HWY_ATTR { return _mm512_set1_epi8(static_cast<char>(x)); };
    __m512i shares = all(away);
    for (int i = 0; i < 6; ++i) shares = _mm512_mask_sub_epi8(shares, kValues[i], shares, all(at(i)));
    _mm512_store_si512(table, shares);
    if (Fields::kBits == 7) _mm512_store_si512(table + 64, _mm512_sub_epi8(shares, all(at(6))));
  }
  if (Fields::kLeavesOne) _mm512_store_si512(table, _mm512_set1_epi8(static_cast<char>(q4[63])));
}
template <class Fields>
HWY_INLINE int32_t distance_in(const uint8_t* table, uint64_t code) {
  int32_t distance = 0;
  for (int f = 0; f < Fields::kFields; ++f, table += Fields::kFieldBytes) {
    int place = 0;
    for (int i = 0; i < Fields::kBits; ++i) {
      const int bit = Fields::bit_of(f, i);
      if (bit >= 0) place |= static_cast<int>(code >> bit & 1) << i;
    }
    distance += table[place];
  }
  return distance - (Fields::kLeavesOne && code >> 63 ? static_cast<int8_t>(*table) : 0);
}
HWY_INLINE void put_tables(const int32_t* q4, bool narrow, uint8_t* table) {
  narrow ? put_fields<SixBits>(q4, table) : put_fields<SevenBits>(q4, table);
}
HWY_INLINE int32_t distance_of(const uint8_t* table, bool narrow, uint64_t code) {
  return narrow ? distance_in<SixBits>(table, code) : distance_in<SevenBits>(table, code);
}
#else
#define FOVEA_BYTE_TABLES 0
HWY_INLINE void put_tables(const int32_t* q4, bool, uint8_t* table) {
  for (int i = 0; i < 64; i += 4, table += kTableBytes) {
    int away = 0;  // of a nibble of zeros: the positive ones disagree
    for (int j = 0; j < 4; ++j) away += std::max(q4[i + j], 0);
    table[0] = static_cast<uint8_t>(away);
    for (int j = 0; j < 4; ++j) {
      for (int n = 0; n < 1 << j; ++n) table[n + (1 << j)] = static_cast<uint8_t>(table[n] - q4[i + j]);
    }
  }
}
HWY_INLINE int32_t distance_of(const uint8_t* table, bool, uint64_t code) {
  int32_t distance = 0;
  for (int n = 0; n < 16; ++n) distance += table[n * kTableBytes + (code >> (4 * n) & 15)];
  return distance;
}
#endif

// ---- Codes ------------------------------------------------------------------------------------------------

// Integers in the opposite order of the floats; the two zeros are one.
HWY_INLINE int32_t rank_of(float score) {
  const auto bits = std::bit_cast<int32_t>(score + 0.0f);
  return ~(bits < 0 ? bits ^ 0x7fffffff : bits);
}

// The length factors of a block, behind its codes.
HWY_INLINE const uint16_t* factors_of(const AsymmetricScan& s, const uint64_t* codes) {
  return reinterpret_cast<const uint16_t*>(codes + static_cast<int64_t>(s.words) * s.block_size);
}

// The best score of the first `valid` tokens of a block, one at a time.
HWY_INLINE float score_tokens(const AsymmetricScan& s, const uint64_t* codes, int head, int valid) {
  float best = -std::numeric_limits<float>::infinity();
  for (int q = 0; q < s.queries_per_head; ++q) {
    const int64_t query = int64_t{head} * s.queries_per_head + q;
    for (int t = 0; t < valid; ++t) {
      int32_t distance = 0;
      for (int w = 0; w < s.words; ++w) {
        distance += distance_of(s.tables + (query * s.words + w) * kTableBytesPerWord, s.narrow, codes[w * s.block_size + t]);
      }
      const float factor = s.length_factor ? bf16_to_f32(factors_of(s, codes)[t]) : 1.0f;
      best = std::max(best, static_cast<float>(s.scales[query].sum - 2 * distance) * factor * s.scales[query].weight);
    }
  }
  return best;
}

// The ranks of `count` blocks of one head, or of more of their tokens.
HWY_INLINE void put(const AsymmetricScan& s, int32_t block, int head, const int32_t* ranks, int32_t count, bool more = false) {
  int32_t* to = s.ranks + (s.share_heads ? 0 : head * s.rank_stride) + block;
  const bool lower = more || (s.share_heads && head > 0);
  for (int32_t i = 0; i < count; ++i) to[i] = lower ? std::min(to[i], ranks[i]) : ranks[i];
}

}  // namespace fovea::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
