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

HWY_BEFORE_NAMESPACE();
namespace fovea::cpu::HWY_NAMESPACE {

// ---- Tables -----------------------------------------------------------------------------------------------

// put_tables: of one word's q4 [64]. share_of: the share in D of value v of nibble number n, as it stands there.
#undef FOVEA_BYTE_TABLES  // of the target before
#if HWY_TARGET == HWY_AVX3_DL
// A look-up takes one of 128 bytes: [byte of the word, value] of all low nibbles, then [value, byte] of all high ones. D is the
// difference of what is found in the two, which is one instruction with their sum over bytes: so one is kept up, the other down.
#define FOVEA_BYTE_TABLES 1
constexpr int kMostOfNibble = 28;

// Shares of 64 places: their first elements are at `from` of q, and bit[j] says where a value has bit j. A value of 0 misses the
// positive ones.
HWY_INLINE __m512i shares_of(__m512i q, __m512i from, const uint64_t (&bit)[4]) {
  __m512i shares = _mm512_setzero_si512();
  for (int j = 0; j < 4; ++j) {
    const __m512i element = _mm512_permutexvar_epi8(_mm512_add_epi8(from, _mm512_set1_epi8(static_cast<char>(j))), q);
    shares = _mm512_add_epi8(shares, _mm512_max_epi8(element, _mm512_setzero_si512()));
    shares = _mm512_mask_sub_epi8(shares, bit[j], shares, element);
  }
  return shares;
}
HWY_INLINE void put_tables(const int32_t* q4, uint8_t* table) {
  alignas(64) int8_t bytes[64];
  for (int i = 0; i < 64; ++i) bytes[i] = static_cast<int8_t>(q4[i]);
  const __m512i q = _mm512_load_si512(bytes), most = _mm512_set1_epi8(kMostOfNibble);
  const __m512i high = _mm512_set1_epi64(0x3c342c241c140c04);
  const __m512i low_from =
      _mm512_inserti32x4(_mm512_inserti32x4(_mm512_inserti32x4(_mm512_setzero_si512(), _mm_set1_epi8(8), 1), _mm_set1_epi8(16), 2),
                         _mm_set1_epi8(24), 3);
  for (int half = 0; half < 2; ++half) {
    const uint64_t low_bits[4] = {0xaaaaaaaaaaaaaaaa, 0xcccccccccccccccc, 0xf0f0f0f0f0f0f0f0, 0xff00ff00ff00ff00};
    const uint64_t high_bits[4] = {0xff00ff00ff00ff00, 0xffff0000ffff0000, 0xffffffff00000000, half ? ~uint64_t{0} : 0};
    const __m512i from = _mm512_add_epi8(low_from, _mm512_set1_epi8(static_cast<char>(32 * half)));
    _mm512_store_si512(table + 64 * half, _mm512_add_epi8(most, shares_of(q, from, low_bits)));
    _mm512_store_si512(table + 128 + 64 * half, _mm512_sub_epi8(most, shares_of(q, high, high_bits)));
  }
}
HWY_INLINE int32_t share_of(const uint8_t* table, int n, int v) {
  return n % 2 ? kMostOfNibble - table[128 + v * 8 + n / 2] : table[n * 8 + v] - kMostOfNibble;
}
#else
#define FOVEA_BYTE_TABLES 0
HWY_INLINE void put_tables(const int32_t* q4, uint8_t* table) {
  for (int i = 0; i < 64; i += 4, table += kTableBytes) {
    int away = 0;  // of a nibble of zeros: the positive ones disagree
    for (int j = 0; j < 4; ++j) away += std::max(q4[i + j], 0);
    table[0] = static_cast<uint8_t>(away);
    for (int j = 0; j < 4; ++j) {
      for (int n = 0; n < 1 << j; ++n) table[n + (1 << j)] = static_cast<uint8_t>(table[n] - q4[i + j]);
    }
  }
}
HWY_INLINE int32_t share_of(const uint8_t* table, int n, int v) { return table[n * kTableBytes + v]; }
#endif

// ---- Codes ------------------------------------------------------------------------------------------------

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
      int32_t distance = 0;
      for (int w = 0; w < s.words; ++w) {
        const uint64_t code = codes[w * s.block_size + t];
        const uint8_t* table = s.tables + (query * s.words + w) * kTableBytesPerWord;
        for (int n = 0; n < 16; ++n) distance += share_of(table, n, static_cast<int>(code >> (4 * n) & 15));
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
