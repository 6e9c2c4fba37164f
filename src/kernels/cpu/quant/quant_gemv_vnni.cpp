// quant_gemv with AVX-512 VNNI, in intrinsics: Highway 1.0.3 does not know the dot product of bytes.
//
// vpdpbusd multiplies unsigned bytes by signed ones, so codes of weights are taken as unsigned: a weight is
//     value * u - less * value     (types that keep no minimum: less is a constant of the type), or
//     value * u + offset           (q4_1, q5_1, q2_k, q4_k, q5_k, int4).
// The second terms need the sums of x alone, which come with x. So a piece of 256 weights is four registers of u, a register of
// values, which are spread over the lanes that hold each sum of products, and one more product for the second terms.
#include "kernels/cpu/quant/quant_gemv.h"

#include "base/check.h"
#include "kernels/common/dequantize.h"

#if defined(__x86_64__)
#include <hwy/base.h>
#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#pragma GCC diagnostic push  // GCC 12's own headers leave registers undefined on purpose
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx512vnni,avx2,fma,f16c,bmi,bmi2")
#include "kernels/cpu/quant/quant_gemv_inl.h"

namespace fovea::cpu {
namespace {

constexpr int kMaxM = 4;      // rows of x that share an unpacked piece
constexpr int kTogether = 4;  // pieces of a turn of the loop, for one row of x: no line is asked for twice

template <WeightType kType>
constexpr XOrder kOrder = kType == WeightType::q2_k || kType == WeightType::q3_k || kType == WeightType::q6_k ? XOrder::natural
                          : kType == WeightType::q4_k || kType == WeightType::q5_k                            ? XOrder::pairs
                                                                                                              : XOrder::halves;

// Codes in the order of x, and values and offsets: of 16 parts of 16 (order natural), of 8 of 32 in the lower lanes (halves), or all
// in `value` (pairs): less the offsets of 8 parts of 32, then their values, as x has sums and scales.
struct Unpacked {
  __m512i u[4];
  __m512 value, offset;
};

FOVEA_INLINE uint64_t load_u64(const uint8_t* p) {
  uint64_t v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
FOVEA_INLINE __m512i load(const uint8_t* p) { return _mm512_loadu_si512(p); }
// Else the compiler folds the load into each of its uses.
FOVEA_INLINE __m512i keep(__m512i v) {
  asm("" : "+v"(v));
  return v;
}
FOVEA_INLINE __m512i low_halves(__m512i v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
FOVEA_INLINE __m512i high_halves(__m512i v) { return low_halves(_mm512_srli_epi16(v, 4)); }
FOVEA_INLINE __m512 eight(__m256 v) { return _mm512_zextps256_ps512(v); }

// 16 bytes of each of four blocks.
template <int kStride>
FOVEA_INLINE __m512i four_sixteens(const uint8_t* p) {
  const auto at = [p](int i) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + i * kStride)); };
  __m256i a = _mm256_inserti128_si256(_mm256_castsi128_si256(at(0)), at(1), 1);
  __m256i b = _mm256_inserti128_si256(_mm256_castsi128_si256(at(2)), at(3), 1);
  return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
}

// Sixteens 0 and 2, or 1 and 3, of `a` and then of `b`.
FOVEA_INLINE __m512i even_sixteens(__m512i a, __m512i b) { return _mm512_shuffle_i32x4(a, b, 0x88); }
FOVEA_INLINE __m512i odd_sixteens(__m512i a, __m512i b) { return _mm512_shuffle_i32x4(a, b, 0xdd); }

// 32 bytes of each of two blocks.
template <int kStride>
FOVEA_INLINE __m512i two_parts(const uint8_t* p) {
  const auto at = [p](int i) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + i * kStride)); };
  return _mm512_inserti64x4(_mm512_castsi256_si512(at(0)), at(1), 1);
}

// Fifth bits of four blocks, those of the first 16 elements of each, or of the second.
template <int kStride>
FOVEA_INLINE __mmask64 fifth_bits(const uint8_t* high, int second) {
  const uint8_t* p = high + 2 * second;
  return _cvtu64_mask64(uint64_t{load_u16(p)} | uint64_t{load_u16(p + kStride)} << 16 | uint64_t{load_u16(p + 2 * kStride)} << 32 |
                        uint64_t{load_u16(p + 3 * kStride)} << 48);
}

FOVEA_INLINE __m512i table_of(const int8_t (&values)[16], int more) {
  alignas(16) uint8_t bytes[16];
  for (int i = 0; i < 16; ++i) bytes[i] = static_cast<uint8_t>(values[i] + more);
  return _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes)));
}

FOVEA_INLINE __m256 floats_of(uint64_t bytes) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(bytes))));
}
FOVEA_INLINE __m512 floats_of_16(__m128i bytes) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes)); }
// 32 bytes twice.
FOVEA_INLINE __m512i twice(const uint8_t* p) {
  return _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
// 128 elements of 2 bits in 32 bytes, 64 of them: their parts 2 * kPair and 2 * kPair + 1.
template <int kPair>
FOVEA_INLINE __m512i two_bits(__m512i both) {
  const __m512i shifts =
      _mm512_setr_epi64(4 * kPair, 4 * kPair, 4 * kPair, 4 * kPair, 4 * kPair + 2, 4 * kPair + 2, 4 * kPair + 2, 4 * kPair + 2);
  return _mm512_and_si512(_mm512_srlv_epi64(both, shifts), _mm512_set1_epi8(3));
}

// ---- Blocks of 32: eight of them ------------------------------------------------------------------------------------

template <WeightType kType, int kStride, int kAt>
FOVEA_INLINE void small_codes(const uint8_t* b, Unpacked* out) {
#pragma GCC unroll 2
  for (int c = 0; c < 2; ++c) {
    const uint8_t* p = b + 4 * c * kStride;
    __m512i low, high;
    if constexpr (kType == WeightType::q8_0) {
      const __m512i sign = _mm512_set1_epi8(-128);
      const __m512i a = _mm512_xor_si512(two_parts<kStride>(p + kAt), sign);
      const __m512i b = _mm512_xor_si512(two_parts<kStride>(p + kAt + 2 * kStride), sign);
      low = even_sixteens(a, b);
      high = odd_sixteens(a, b);
    } else {
      const __m512i v = four_sixteens<kStride>(p + kAt);
      low = low_halves(v);
      high = high_halves(v);
    }
    if constexpr (kType == WeightType::q5_0 || kType == WeightType::q5_1) {
      const __m512i sixteen = _mm512_set1_epi8(16);
      low = _mm512_mask_add_epi8(low, fifth_bits<kStride>(p + kAt - 4, 0), low, sixteen);
      high = _mm512_mask_add_epi8(high, fifth_bits<kStride>(p + kAt - 4, 1), high, sixteen);
    } else if constexpr (kType == WeightType::iq4_nl || kType == WeightType::mxfp4) {
      const __m512i table = kType == WeightType::iq4_nl ? table_of(kIq4Values, 128) : table_of(kMxfp4Values, 12);
      low = _mm512_shuffle_epi8(table, low);
      high = _mm512_shuffle_epi8(table, high);
    }
    out->u[2 * c] = low;
    out->u[2 * c + 1] = high;
  }
}

// ---- Blocks of 256 -------------------------------------------------------------------------------------------------

FOVEA_INLINE void k_scales(const uint8_t* b, Unpacked* out) {
  const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b)), bytes = k_minimums_and_scales(v);
  const __m512 factors = _mm512_permutexvar_ps(_mm512_setr_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0),
                                               _mm512_castps128_ps512(_mm_cvtph_ps(v)));
  out->value = _mm512_mul_ps(floats_of_16(bytes), factors);
}

// 128 bytes of which each holds elements of an even part and of the odd one behind it.
FOVEA_INLINE void pairs_of_codes(const uint8_t* b, Unpacked* out) {
  const __m512i v = keep(load(b)), w = keep(load(b + 64)), first = even_sixteens(v, w), second = odd_sixteens(v, w);
  out->u[0] = low_halves(first);
  out->u[1] = low_halves(second);
  out->u[2] = _mm512_xor_si512(first, out->u[0]);  // 16 times: x has a sixteenth
  out->u[3] = _mm512_xor_si512(second, out->u[1]);
}

FOVEA_INLINE void block_q4_k(const uint8_t* b, Unpacked* out) {
  k_scales(b, out);
  pairs_of_codes(b + 16, out);
}

FOVEA_INLINE void block_q5_k(const uint8_t* b, Unpacked* out) {
  k_scales(b, out);
  out->value = _mm512_mul_ps(out->value, _mm512_setr_ps(1, 1, 1, 1, 1, 1, 1, 1, 1, 16, 1, 16, 1, 16, 1, 16));
  pairs_of_codes(b + 48, out);
  out->u[2] = _mm512_srli_epi16(out->u[2], 4);
  out->u[3] = _mm512_srli_epi16(out->u[3], 4);
  const __m512i mask = _mm512_set1_epi8(16);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const auto* half = reinterpret_cast<const __m128i*>(b + 16 + 16 * (i % 2));
    const __m512i high = _mm512_broadcast_i32x4(_mm_loadu_si128(half));
    // Bit `part` of a byte turned to where bit 4 of it is.
    const int a = 4 - i / 2, c = 2 - i / 2, e = (0 - i / 2) & 31, g = (-2 - i / 2) & 31;
    const __m512i turns = _mm512_setr_epi32(a, a, a, a, c, c, c, c, e, e, e, e, g, g, g, g);
    out->u[i] = _mm512_ternarylogic_epi32(out->u[i], _mm512_rolv_epi32(high, turns), mask, 0xf8);  // u | (turned & mask)
  }
}

FOVEA_INLINE void block_q6_k(const uint8_t* b, Unpacked* out) {
  const __m128i scales = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b + 192));
  out->value = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(scales)), _mm512_set1_ps(half_at(b + 208)));
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const __m512i v = load(b + 64 * half), both = twice(b + 128 + 32 * half);
    out->u[2 * half] = _mm512_or_si512(low_halves(v), _mm512_slli_epi16(two_bits<0>(both), 4));
    out->u[2 * half + 1] = _mm512_or_si512(high_halves(v), _mm512_slli_epi16(two_bits<1>(both), 4));
  }
}

FOVEA_INLINE void block_q3_k(const uint8_t* b, Unpacked* out) {
  const uint64_t low = load_u64(b + 96);
  const uint32_t high = load_u32(b + 104);
  const auto fourth = [high](int i) { return uint64_t{high >> (2 * i) & 0x03030303u} << 4; };
  const uint64_t first = (low & 0x0f0f0f0f0f0f0f0full) | fourth(0) | fourth(1) << 32;
  const uint64_t second = (low >> 4 & 0x0f0f0f0f0f0f0f0full) | fourth(2) | fourth(3) << 32;
  const __m128i bytes = _mm_set_epi64x(static_cast<int64_t>(second), static_cast<int64_t>(first));
  const __m512i scales = _mm512_sub_epi32(_mm512_cvtepu8_epi32(bytes), _mm512_set1_epi32(32));
  out->value = _mm512_mul_ps(_mm512_cvtepi32_ps(scales), _mm512_set1_ps(half_at(b + 108)));
  const __m512i third = twice(b), mask = _mm512_set1_epi8(4);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i both = twice(b + 32 + 32 * (i / 2));
    const __m512i two = i % 2 == 0 ? two_bits<0>(both) : two_bits<1>(both);
    const int a = (2 - 2 * i) & 31, c = (1 - 2 * i) & 31;  // bits 2 i and 2 i + 1 of a byte to where bit 2 is
    const __m512i turns = _mm512_setr_epi32(a, a, a, a, a, a, a, a, c, c, c, c, c, c, c, c);
    out->u[i] = _mm512_ternarylogic_epi32(two, _mm512_rolv_epi32(third, turns), mask, 0xf8);
  }
}

FOVEA_INLINE void block_q2_k(const uint8_t* b, Unpacked* out) {
  const __m128i both = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b)), mask = _mm_set1_epi8(15);
  out->value = _mm512_mul_ps(floats_of_16(_mm_and_si128(both, mask)), _mm512_set1_ps(half_at(b + 80)));
  out->offset = _mm512_mul_ps(floats_of_16(_mm_and_si128(_mm_srli_epi16(both, 4), mask)), _mm512_set1_ps(-half_at(b + 82)));
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const __m512i q = twice(b + 16 + 32 * half);
    out->u[2 * half] = two_bits<0>(q);
    out->u[2 * half + 1] = two_bits<1>(q);
  }
}

FOVEA_INLINE void block_iq4_xs(const uint8_t* b, Unpacked* out) {
  const uint64_t scales = _pdep_u64(load_u32(b + 4), 0x0f0f0f0f0f0f0f0full) | _pdep_u64(load_u16(b + 2), 0x3030303030303030ull);
  const __m256 less = _mm256_sub_ps(floats_of(scales), _mm256_set1_ps(32.0f));
  out->value = eight(_mm256_mul_ps(less, _mm256_set1_ps(half_at(b))));
  const __m512i table = table_of(kIq4Values, 128);
#pragma GCC unroll 2
  for (int c = 0; c < 2; ++c) {
    const __m512i v = load(b + 8 + 64 * c);
    out->u[2 * c] = _mm512_shuffle_epi8(table, low_halves(v));
    out->u[2 * c + 1] = _mm512_shuffle_epi8(table, high_halves(v));
  }
}

// ---- A piece -------------------------------------------------------------------------------------------------------

template <WeightType kType>
FOVEA_INLINE void unpack(const uint8_t* b, const Scales& scales, int64_t begin, Unpacked* out) {
  if constexpr (kType == WeightType::q8_0) {
    out->value = eight(eight_halves<34>(b));
    small_codes<kType, 34, 2>(b, out);
  } else if constexpr (kType == WeightType::q4_0 || kType == WeightType::iq4_nl) {
    out->value = eight(eight_halves<18>(b));
    small_codes<kType, 18, 2>(b, out);
  } else if constexpr (kType == WeightType::q4_1) {
    out->value = eight(eight_halves<20>(b));
    out->offset = eight(eight_halves<20>(b + 2));
    small_codes<kType, 20, 4>(b, out);
  } else if constexpr (kType == WeightType::q5_0) {
    out->value = eight(eight_halves<22>(b));
    small_codes<kType, 22, 6>(b, out);
  } else if constexpr (kType == WeightType::q5_1) {
    out->value = eight(eight_halves<24>(b));
    out->offset = eight(eight_halves<24>(b + 2));
    small_codes<kType, 24, 8>(b, out);
  } else if constexpr (kType == WeightType::mxfp4) {
    out->value = eight(eight_exponents(b));
    small_codes<kType, 17, 1>(b, out);
  } else if constexpr (kType == WeightType::q2_k) {
    block_q2_k(b, out);
  } else if constexpr (kType == WeightType::q3_k) {
    block_q3_k(b, out);
  } else if constexpr (kType == WeightType::q4_k) {
    block_q4_k(b, out);
  } else if constexpr (kType == WeightType::q5_k) {
    block_q5_k(b, out);
  } else if constexpr (kType == WeightType::q6_k) {
    block_q6_k(b, out);
  } else if constexpr (kType == WeightType::iq4_xs) {
    block_iq4_xs(b, out);
  } else if constexpr (kType == WeightType::int8) {
    out->value = eight(_mm256_castsi256_ps(scales.of_piece(begin)));
    small_codes<WeightType::q8_0, 32, 0>(b, out);
  } else {
    static_assert(kType == WeightType::int4);
    const __m256i bits = scales.of_piece(begin), low = _mm256_set1_epi32(255);
    const __m256 value = _mm256_castsi256_ps(_mm256_andnot_si256(low, bits));
    const __m256 zero = _mm256_cvtepi32_ps(_mm256_and_si256(low, bits));
    out->value = eight(value);
    out->offset = eight(_mm256_fnmadd_ps(value, zero, _mm256_setzero_ps()));
    small_codes<WeightType::q4_0, 16, 0>(b, out);
  }
}

// Sums of one row of W with M rows of x.
template <int M>
struct Sums {
  __m512 even[M], odd[M], second[M];  // products in two chains, each long enough to wait for; the second terms
};

// Lane numbers from `first` on, each four times, `step` apart.
FOVEA_INLINE __m512i fours(int first, int step) {
  const int a = first, b = a + step, c = b + step, d = c + step;
  return _mm512_setr_epi32(a, a, a, a, b, b, b, b, c, c, c, c, d, d, d, d);
}
FOVEA_INLINE __m512 spread(__m512 value, int first, int step) { return _mm512_permutexvar_ps(fours(first, step), value); }

// One row of W with one of x.
template <WeightType kType>
FOVEA_INLINE void add_products(const Unpacked& w, const QuantisedX& x, __m512& even, __m512& odd, __m512& second) {
  constexpr XOrder order = kOrder<kType>;
  const auto dot = [&](__m512i sum, int i) { return _mm512_dpbusd_epi32(sum, w.u[i], _mm512_load_si512(x.code + 64 * i)); };
  const __m512i zero = _mm512_setzero_si512();
  if constexpr (order == XOrder::natural) {
    const __m512 value = _mm512_mul_ps(w.value, _mm512_load_ps(x.scale));
    second = _mm512_fmadd_ps(kHasOffsets<kType> ? w.offset : w.value, _mm512_load_ps(x.sum), second);
    even = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot(zero, 0)), spread(value, 0, 1), even);
    odd = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot(zero, 1)), spread(value, 4, 1), odd);
    even = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot(zero, 2)), spread(value, 8, 1), even);
    odd = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot(zero, 3)), spread(value, 12, 1), odd);
  } else {
    const __m512 first = _mm512_cvtepi32_ps(dot(dot(zero, 0), 1)), last = _mm512_cvtepi32_ps(dot(dot(zero, 2), 3));
    if constexpr (order == XOrder::pairs) {
      static_assert(offsetof(QuantisedX, scale_of_32) == offsetof(QuantisedX, sum_of_32) + 32);
      const __m512 value = _mm512_mul_ps(w.value, _mm512_load_ps(x.sum_of_32));
      second = eight(_mm256_sub_ps(_mm512_castps512_ps256(second), _mm512_castps512_ps256(value)));
      even = _mm512_fmadd_ps(first, spread(value, 8, 2), even);
      odd = _mm512_fmadd_ps(last, spread(value, 9, 2), odd);
    } else {
      const __m512 value = eight(_mm256_mul_ps(_mm512_castps512_ps256(w.value), _mm256_load_ps(x.scale_of_32)));
      second = eight(_mm256_fmadd_ps(_mm512_castps512_ps256(kHasOffsets<kType> ? w.offset : w.value), _mm256_load_ps(x.sum_of_32),
                                     _mm512_castps512_ps256(second)));
      even = _mm512_fmadd_ps(first, spread(value, 0, 1), even);
      odd = _mm512_fmadd_ps(last, spread(value, 4, 1), odd);
    }
  }
}

template <WeightType kType, int M>
FOVEA_INLINE void add_piece(const Unpacked& w, const QuantisedX* x, Sums<M>& sums) {
#pragma GCC unroll 4
  for (int m = 0; m < M; ++m) add_products<kType>(w, x[m], sums.even[m], sums.odd[m], sums.second[m]);
}

template <WeightType kType>
FOVEA_INLINE __m512 lanes_of_sum(__m512 even, __m512 odd, __m512 second) {
  if constexpr (kOrder<kType> != XOrder::pairs && !kHasOffsets<kType>)
    second = _mm512_mul_ps(second, _mm512_set1_ps(static_cast<float>(-code_bias(kType))));
  return _mm512_add_ps(_mm512_add_ps(even, odd), second);
}

// The sum of the lanes of each.
FOVEA_INLINE __m128 four_sums(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512d ab = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)));
  const __m512d cd = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d)));
  const __m512 all = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)), _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)));
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

// Rows [begin, end) of W with rows [m0, m0 + M) of x.
template <WeightType kType, int M>
void products(const QuantGemvSlice& s, int64_t begin, int64_t end, int32_t m0) {
  constexpr int32_t kBytes = bytes_of_piece(kType);
  const int64_t cols = s.w.cols, row_bytes = s.w.row_bytes();
  Scales scales = scales_of(s.w, begin);
  const uint8_t* row = s.w.row(begin);
  // Of four rows of W, whose lanes are summed together: alone each takes as long as two pieces.
  alignas(64) float lanes[M][4][16] = {};
  for (int64_t j = begin; j < end; ++j, row += row_bytes, scales.bits += scales.count) {
    const QuantisedX* x = s.packed + m0;
    Sums<M> sums;
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) sums.even[m] = sums.odd[m] = sums.second[m] = _mm512_setzero_ps();
    Unpacked unpacked;
    const uint8_t* w = row;
    int64_t c = 0;
    const auto pieces = [&](auto count) {
      constexpr int kCount = decltype(count)::value;
      for (; c + kCount * kQuantPiece <= cols; c += kCount * kQuantPiece, w += kCount * kBytes) {
#pragma GCC unroll 4
        for (int i = 0; i < kCount; ++i, x += s.rows) {
          ask_ahead<kType>(w, i);
          unpack<kType>(w + i * kBytes, scales, c + i * kQuantPiece, &unpacked);
          add_piece<kType>(unpacked, x, sums);
        }
      }
    };
    if constexpr (M == 1) pieces(std::integral_constant<int, kTogether>());
    pieces(std::integral_constant<int, 1>());
    if (c < cols) {  // the last blocks, and zeros for those that are missing
      alignas(64) uint8_t tail[kBytes + 64] = {};
      std::memcpy(tail, w, static_cast<size_t>(row_bytes - (w - row)));
      unpack<kType>(tail, scales, c, &unpacked);
      add_piece<kType>(unpacked, x, sums);
    }
    const int64_t filled = (j - begin) % 4 + 1;
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m)
      _mm512_store_ps(lanes[m][filled - 1], lanes_of_sum<kType>(sums.even[m], sums.odd[m], sums.second[m]));
    if (filled < 4 && j + 1 < end) continue;
    const int64_t first = j + 1 - filled;
    const auto there = static_cast<__mmask8>((1 << filled) - 1);
    const __m128 bias = s.bias ? _mm_maskz_loadu_ps(there, s.bias + first) : _mm_setzero_ps();
    for (int m = 0; m < M; ++m) {
      const auto of = [&](int i) { return _mm512_load_ps(lanes[m][i]); };
      _mm_mask_storeu_ps(s.out + (m0 + m) * s.out_stride + first, there, _mm_add_ps(four_sums(of(0), of(1), of(2), of(3)), bias));
    }
  }
}

}  // namespace

void quant_gemv_vnni(const QuantGemvSlice& s) {
  with_type(s.w.type, [&](auto type) {
    constexpr WeightType kType = decltype(type)::value;
    constexpr void (*kProducts[])(const QuantGemvSlice&, int64_t, int64_t, int32_t) = {&products<kType, 1>, &products<kType, 2>,
                                                                                       &products<kType, 3>, &products<kType, 4>};
    in_passes<kMaxM>(s, [&](int64_t begin, int64_t end, int32_t m0, int32_t rows) { kProducts[rows - 1](s, begin, end, m0); });
  });
}

}  // namespace fovea::cpu

HWY_POP_ATTRIBUTES
#pragma GCC diagnostic pop

#else

namespace fovea::cpu {
void quant_gemv_vnni(const QuantGemvSlice&) { FOVEA_CHECK(false && "quant_gemv_vnni: not on this CPU"); }
}  // namespace fovea::cpu

#endif
