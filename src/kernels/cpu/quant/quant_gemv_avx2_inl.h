// quant_gemv over registers of 256 bits, in intrinsics: compiled for AVX2, for AVX-VNNI, and in the tests for the same instruction as
// AVX-512 encodes it. Each includes it where it has switched its instructions on, and has its own copy.
//
// AVX2's vpmaddubsw multiplies unsigned bytes by signed ones and adds two products to 16 bits, which saturate. Codes below 64 are taken
// as unsigned, as quant_gemv_vnni.cpp takes them all: a weight is value * u + offset. Two times two of their products stay below 2^15
// (63 * 127 * 4). Types whose codes need all 8 bits (q8_0, int8, and the tables of iq4) are multiplied as |w| times x with the sign of
// w: 128 * 127 * 2 stays below it too. Where FOVEA_DPBUSD(sum, u, x) is defined it adds four products to 32 bits instead: the same
// integers, so the same floats.
//
// A register holds a half of part p of a piece and, in its upper lane of 128 bits, that of part p + 4. So both halves of a part meet in
// one sum of four 32-bit lanes, and of the values of eight parts, in order, a permutation within lanes spreads the two that belong to it.
#pragma once

#include "kernels/common/dequantize.h"
#include "kernels/cpu/quant/quant_gemv_inl.h"

namespace fovea::cpu {
namespace {

constexpr int kMaxM = 4;      // rows of x that share an unpacked piece
constexpr int kTogether = 4;  // pieces of a turn of the loop, for one row of x: no line is asked for twice

// Codes are signed bytes, and there are no offsets; else unsigned, and there are.
template <WeightType kType>
constexpr bool kSigned =
    kType == WeightType::q8_0 || kType == WeightType::int8 || kType == WeightType::iq4_nl || kType == WeightType::iq4_xs;

FOVEA_INLINE __m128i load_128(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
FOVEA_INLINE __m256i in_lanes(__m128i lower, __m128i upper) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(lower), upper, 1);
}
FOVEA_INLINE __m256i two_sixteens(const uint8_t* lower, const uint8_t* upper) { return in_lanes(load_128(lower), load_128(upper)); }
// Bits of each byte from kFrom on, of which `mask` says how many, to kTo and up.
template <int kFrom, int kTo>
FOVEA_INLINE __m256i bits(__m256i v, int mask) {
  if constexpr (kFrom < kTo) v = _mm256_slli_epi16(v, kTo - kFrom);
  if constexpr (kFrom > kTo) v = _mm256_srli_epi16(v, kFrom - kTo);
  return _mm256_and_si256(v, _mm256_set1_epi8(static_cast<char>(mask)));
}
FOVEA_INLINE __m256i table_of(const int8_t (&values)[16], int more) {
  alignas(16) int8_t bytes[16];
  for (int i = 0; i < 16; ++i) bytes[i] = static_cast<int8_t>(values[i] + more);
  return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes)));
}
FOVEA_INLINE __m256 floats_of(__m128i eight_bytes) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight_bytes)); }
FOVEA_INLINE __m256i all_lanes(uint32_t v) { return _mm256_set1_epi32(static_cast<int>(v)); }
// Four bytes as 32 bits each, in both lanes.
FOVEA_INLINE __m256i four_bytes(const uint8_t* p) { return _mm256_cvtepu8_epi32(_mm_set1_epi32(static_cast<int>(load_u32(p)))); }
// Shifts to the right by `n` bits more in the upper lane.
FOVEA_INLINE __m256i upper_down(__m256i v, int n) { return _mm256_srlv_epi32(v, _mm256_setr_epi32(0, 0, 0, 0, n, n, n, n)); }

// ---- Codes of parts p and p + 4: their first halves, then their second -----------------------------------------------

// Of blocks of 32 that are kStride bytes apart, whose codes begin kAt bytes into them.
template <WeightType kType, int p, int kStride, int kAt>
FOVEA_INLINE void small_codes(const uint8_t* b, __m256i (&u)[2]) {
  const uint8_t *lower = b + p * kStride + kAt, *upper = lower + 4 * kStride;
  if constexpr (kType == WeightType::q8_0) {
    u[0] = two_sixteens(lower, upper);
    u[1] = two_sixteens(lower + 16, upper + 16);
    return;
  }
  const __m256i v = two_sixteens(lower, upper);
  u[0] = bits<0, 0>(v, 15);
  u[1] = bits<4, 0>(v, 15);
  if constexpr (kType == WeightType::q5_0 || kType == WeightType::q5_1) {
    const auto fifths = [](const uint8_t* codes) { return _mm_set1_epi32(static_cast<int>(load_u32(codes - 4))); };
    const __m256i high = in_lanes(fifths(lower), fifths(upper)), bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const char e = static_cast<char>(2 * half), f = static_cast<char>(2 * half + 1);
      const __m256i spread = _mm256_shuffle_epi8(high, _mm256_setr_epi8(e, e, e, e, e, e, e, e, f, f, f, f, f, f, f, f,  //
                                                                        e, e, e, e, e, e, e, e, f, f, f, f, f, f, f, f));
      const __m256i there = _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit);
      u[half] = _mm256_or_si256(u[half], _mm256_and_si256(there, _mm256_set1_epi8(16)));
    }
  } else if constexpr (kType == WeightType::iq4_nl || kType == WeightType::mxfp4) {
    const __m256i table = kType == WeightType::iq4_nl ? table_of(kIq4Values, 0) : table_of(kMxfp4Values, code_bias(kType));
    u[0] = _mm256_shuffle_epi8(table, u[0]);
    u[1] = _mm256_shuffle_epi8(table, u[1]);
  }
}

// 32 bytes of which bit p belongs to part p: to bit kTo.
template <int p, int kTo>
FOVEA_INLINE __m256i high_bit(const uint8_t* b, int half) {
  return bits<p, kTo>(upper_down(_mm256_broadcastsi128_si256(load_128(b + 16 * half)), 4), 1 << kTo);
}

template <WeightType kType, int p>
FOVEA_INLINE void codes(const uint8_t* b, __m256i (&u)[2]) {
  if constexpr (kType == WeightType::q8_0) {
    small_codes<kType, p, 34, 2>(b, u);
  } else if constexpr (kType == WeightType::q4_0 || kType == WeightType::iq4_nl) {
    small_codes<kType, p, 18, 2>(b, u);
  } else if constexpr (kType == WeightType::q4_1) {
    small_codes<kType, p, 20, 4>(b, u);
  } else if constexpr (kType == WeightType::q5_0) {
    small_codes<kType, p, 22, 6>(b, u);
  } else if constexpr (kType == WeightType::q5_1) {
    small_codes<kType, p, 24, 8>(b, u);
  } else if constexpr (kType == WeightType::mxfp4) {
    small_codes<kType, p, 17, 1>(b, u);
  } else if constexpr (kType == WeightType::iq4_xs) {
    small_codes<WeightType::iq4_nl, p, 16, 0>(b + 8, u);
  } else if constexpr (kType == WeightType::int8) {
    small_codes<WeightType::q8_0, p, 32, 0>(b, u);
  } else if constexpr (kType == WeightType::int4) {
    small_codes<WeightType::q4_0, p, 16, 0>(b, u);
  } else {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const uint8_t* at = b + 16 * half;
      if constexpr (kType == WeightType::q4_k || kType == WeightType::q5_k) {
        const uint8_t* q = at + (kType == WeightType::q4_k ? 16 : 48) + p / 2 * 32;
        u[half] = bits<p % 2 * 4, 0>(two_sixteens(q, q + 64), 15);
        if constexpr (kType == WeightType::q5_k) u[half] = _mm256_or_si256(u[half], high_bit<p, 4>(b + 16, half));
      } else if constexpr (kType == WeightType::q6_k) {
        const __m256i low = bits<p / 2 * 4, 0>(two_sixteens(at + p % 2 * 32, at + p % 2 * 32 + 64), 15);
        u[half] = _mm256_or_si256(low, bits<2 * p, 4>(two_sixteens(at + 128, at + 160), 0x30));
      } else if constexpr (kType == WeightType::q3_k) {
        u[half] = _mm256_or_si256(bits<2 * p, 0>(two_sixteens(at + 32, at + 64), 3), high_bit<p, 2>(b, half));
      } else {
        static_assert(kType == WeightType::q2_k);
        u[half] = bits<2 * p, 0>(two_sixteens(at + 16, at + 48), 3);
      }
    }
  }
}

// ---- Values and offsets --------------------------------------------------------------------------------------------

template <WeightType kType>
constexpr int kValues = by_sixteen(kType) ? 2 : 1;  // registers of them

// Of eight parts of 32 in order; or of sixteens 0 to 3 and 8 to 11, then of the others. No offsets where codes are signed.
template <WeightType kType>
struct Factors {
  __m256 value[kValues<kType>], offset[kValues<kType>];
};

template <WeightType kType>
FOVEA_INLINE void k_factors(const uint8_t* b, Factors<kType>* out) {
  const __m128i v = load_128(b), both = k_minimums_and_scales(v);
  const __m128 d = _mm_cvtph_ps(v), minus = _mm_xor_ps(_mm_movehdup_ps(d), _mm_set1_ps(-0.0f));
  out->value[0] = _mm256_mul_ps(floats_of(_mm_srli_si128(both, 8)), _mm256_broadcastss_ps(d));
  out->offset[0] = _mm256_mul_ps(floats_of(both), _mm256_broadcastss_ps(minus));
}

FOVEA_INLINE void q2_factors(const uint8_t* b, Factors<WeightType::q2_k>* out) {
  const __m256 d = _mm256_set1_ps(half_at(b + 80)), less = _mm256_set1_ps(-half_at(b + 82));
  const __m128i mask = _mm_set1_epi8(15), v = _mm_shuffle_epi32(load_128(b), _MM_SHUFFLE(3, 1, 2, 0));
  const __m128i low = _mm_and_si128(v, mask), high = _mm_and_si128(_mm_srli_epi16(v, 4), mask);
  out->value[0] = _mm256_mul_ps(floats_of(low), d);
  out->value[1] = _mm256_mul_ps(floats_of(_mm_srli_si128(low, 8)), d);
  out->offset[0] = _mm256_mul_ps(floats_of(high), less);
  out->offset[1] = _mm256_mul_ps(floats_of(_mm_srli_si128(high, 8)), less);
}

FOVEA_INLINE void q3_factors(const uint8_t* b, Factors<WeightType::q3_k>* out) {
  const __m256 d = _mm256_set1_ps(half_at(b + 108));
  const __m256i fifteen = _mm256_set1_epi32(15), upper = upper_down(four_bytes(b + 104), 4);
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m256i low = _mm256_and_si256(upper_down(four_bytes(b + 96 + 4 * i), 4), fifteen);
    const __m256i high =
        _mm256_and_si256(i == 0 ? _mm256_slli_epi32(upper, 4) : _mm256_slli_epi32(upper, 2), _mm256_set1_epi32(0x30));
    out->value[i] = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_or_si256(low, high), _mm256_set1_epi32(32))), d);
  }
}

FOVEA_INLINE void q6_factors(const uint8_t* b, Factors<WeightType::q6_k>* out) {
  const __m256 d = _mm256_set1_ps(half_at(b + 208));
  const __m128i v = _mm_shuffle_epi32(load_128(b + 192), _MM_SHUFFLE(3, 1, 2, 0));
  out->value[0] = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(v)), d);
  out->value[1] = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(v, 8))), d);
}

FOVEA_INLINE __m256 iq4_xs_values(const uint8_t* b) {
  const __m256i low = _mm256_srlv_epi32(all_lanes(load_u32(b + 4)), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
  const __m256i high = _mm256_srlv_epi32(all_lanes(uint32_t{load_u16(b + 2)} << 4), _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14));
  const __m256i scale =
      _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi32(15)), _mm256_and_si256(high, _mm256_set1_epi32(0x30)));
  return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_sub_epi32(scale, _mm256_set1_epi32(32))), _mm256_set1_ps(half_at(b)));
}

template <WeightType kType>
FOVEA_INLINE Factors<kType> factors(const uint8_t* b, const Scales& scales, int64_t begin) {
  Factors<kType> out;
  if constexpr (kType == WeightType::q8_0) {
    out.value[0] = eight_halves<34>(b);
  } else if constexpr (kType == WeightType::q4_0 || kType == WeightType::iq4_nl) {
    out.value[0] = eight_halves<18>(b);
  } else if constexpr (kType == WeightType::q4_1) {
    out.value[0] = eight_halves<20>(b);
    out.offset[0] = eight_halves<20>(b + 2);
  } else if constexpr (kType == WeightType::q5_0) {
    out.value[0] = eight_halves<22>(b);
  } else if constexpr (kType == WeightType::q5_1) {
    out.value[0] = eight_halves<24>(b);
    out.offset[0] = eight_halves<24>(b + 2);
  } else if constexpr (kType == WeightType::mxfp4) {
    out.value[0] = eight_exponents(b);
  } else if constexpr (kType == WeightType::q2_k) {
    q2_factors(b, &out);
  } else if constexpr (kType == WeightType::q3_k) {
    q3_factors(b, &out);
  } else if constexpr (kType == WeightType::q4_k || kType == WeightType::q5_k) {
    k_factors(b, &out);
  } else if constexpr (kType == WeightType::q6_k) {
    q6_factors(b, &out);
  } else if constexpr (kType == WeightType::iq4_xs) {
    out.value[0] = iq4_xs_values(b);
  } else if constexpr (kType == WeightType::int8) {
    out.value[0] = _mm256_castsi256_ps(scales.of_piece(begin));
  } else {
    static_assert(kType == WeightType::int4);
    const __m256i both = scales.of_piece(begin), low = _mm256_set1_epi32(255);
    out.value[0] = _mm256_castsi256_ps(_mm256_andnot_si256(low, both));
    out.offset[0] = _mm256_fnmadd_ps(out.value[0], _mm256_cvtepi32_ps(_mm256_and_si256(low, both)), _mm256_setzero_ps());
  }
  if constexpr (!kHasOffsets<kType> && !kSigned<kType>) {
    const __m256 less = _mm256_set1_ps(static_cast<float>(-code_bias(kType)));
    for (int i = 0; i < kValues<kType>; ++i) out.offset[i] = _mm256_mul_ps(out.value[i], less);
  }
  return out;
}

// ---- Products ------------------------------------------------------------------------------------------------------

// What x has for each of the values: scales, or sums.
template <WeightType kType>
FOVEA_INLINE __m256 of_x(const float* by_16, const float* by_32, int i) {
  if constexpr (!by_sixteen(kType)) return _mm256_load_ps(by_32);
  return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_load_ps(by_16 + 4 * i)), _mm_load_ps(by_16 + 8 + 4 * i), 1);
}

// Codes of W as unsigned bytes, and those of x with the signs that this took.
template <WeightType kType>
FOVEA_INLINE __m256i unsigned_codes(__m256i u) {
  return kSigned<kType> ? _mm256_abs_epi8(u) : u;
}
template <WeightType kType>
FOVEA_INLINE __m256i signed_codes(__m256i u, const int8_t* x) {
  const __m256i v = _mm256_load_si256(reinterpret_cast<const __m256i*>(x));
  return kSigned<kType> ? _mm256_sign_epi8(v, u) : v;
}

// Four products in each 32-bit lane; of two registers eight.
#ifdef FOVEA_DPBUSD
template <WeightType kType>
FOVEA_INLINE __m256i add_products(__m256i sum, __m256i u, const int8_t* x) {
  return FOVEA_DPBUSD(sum, unsigned_codes<kType>(u), signed_codes<kType>(u, x));
}
template <WeightType kType>
FOVEA_INLINE __m256i sums_of(__m256i u, const int8_t* x) {
  return add_products<kType>(_mm256_setzero_si256(), u, x);
}
template <WeightType kType>
FOVEA_INLINE __m256i sums_of(const __m256i (&u)[2], const int8_t* x) {
  return add_products<kType>(sums_of<kType>(u[0], x), u[1], x + 32);
}
#else
template <WeightType kType>
FOVEA_INLINE __m256i pairs(__m256i u, const int8_t* x) {
  return _mm256_maddubs_epi16(unsigned_codes<kType>(u), signed_codes<kType>(u, x));
}
template <WeightType kType>
FOVEA_INLINE __m256i sums_of(__m256i u, const int8_t* x) {
  return _mm256_madd_epi16(pairs<kType>(u, x), _mm256_set1_epi16(1));
}
template <WeightType kType>
FOVEA_INLINE __m256i sums_of(const __m256i (&u)[2], const int8_t* x) {
  if constexpr (kSigned<kType>) return _mm256_add_epi32(sums_of<kType>(u[0], x), sums_of<kType>(u[1], x + 32));
  return _mm256_madd_epi16(_mm256_add_epi16(pairs<kType>(u[0], x), pairs<kType>(u[1], x + 32)), _mm256_set1_epi16(1));
}
#endif

// The value in lane k of each half.
template <int k>
FOVEA_INLINE __m256 spread(__m256 value) {
  return _mm256_permute_ps(value, _MM_SHUFFLE(k, k, k, k));
}

// Sums of one row of W with one of x: two chains, each long enough to wait for.
struct Sum {
  __m256 even, odd;
};

// Adds the products of parts p and p + 4 of a piece of W, whose values are times x's scales.
template <WeightType kType, int p>
FOVEA_INLINE void add_parts(const __m256i (&u)[2], const __m256 (&value)[kValues<kType>], const QuantisedX& x, Sum* sum) {
  const int8_t* codes = x.code + 64 * p;
  if constexpr (by_sixteen(kType)) {
    const __m256 first = _mm256_cvtepi32_ps(sums_of<kType>(u[0], codes)),
                 second = _mm256_cvtepi32_ps(sums_of<kType>(u[1], codes + 32));
    sum->even = _mm256_fmadd_ps(first, spread<2 * p % 4>(value[p / 2]), sum->even);
    sum->odd = _mm256_fmadd_ps(second, spread<2 * p % 4 + 1>(value[p / 2]), sum->odd);
  } else {
    __m256& chain = p % 2 == 0 ? sum->even : sum->odd;
    chain = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums_of<kType>(u, codes)), spread<p % 4>(value[0]), chain);
  }
}

// One piece of W with M rows of x: what offsets add, then parts 0 and 4 to 3 and 7.
template <WeightType kType, int M>
FOVEA_INLINE void add_piece(const uint8_t* b, const Scales& scales, int64_t begin, const QuantisedX* x, Sum (&sums)[M]) {
  const Factors<kType> w = factors<kType>(b, scales, begin);
  __m256 value[M][kValues<kType>];
#pragma GCC unroll 4
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 2
    for (int i = 0; i < kValues<kType>; ++i) {
      value[m][i] = _mm256_mul_ps(w.value[i], of_x<kType>(x[m].scale, x[m].scale_of_32, i));
      __m256& chain = i == 0 ? sums[m].even : sums[m].odd;
      if constexpr (!kSigned<kType>) chain = _mm256_fmadd_ps(w.offset[i], of_x<kType>(x[m].sum, x[m].sum_of_32, i), chain);
    }
  }
  const auto parts = [&](auto part) {
    constexpr int p = decltype(part)::value;
    __m256i u[2];
    codes<kType, p>(b, u);
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) add_parts<kType, p>(u, value[m], x[m], &sums[m]);
  };
  parts(std::integral_constant<int, 0>());
  parts(std::integral_constant<int, 1>());
  parts(std::integral_constant<int, 2>());
  parts(std::integral_constant<int, 3>());
}

FOVEA_INLINE float sum_of_lanes(__m256 v) {
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

// Rows [begin, end) of W with rows [m0, m0 + M) of x.
template <WeightType kType, int M>
void products(const QuantGemvSlice& s, int64_t begin, int64_t end, int32_t m0) {
  constexpr int32_t kBytes = bytes_of_piece(kType);
  const int64_t cols = s.w.cols, row_bytes = s.w.row_bytes();
  Scales scales = scales_of(s.w, begin);
  const uint8_t* row = s.w.row(begin);
  for (int64_t j = begin; j < end; ++j, row += row_bytes, scales.bits += scales.count) {
    const QuantisedX* x = s.packed + m0;
    Sum sums[M];
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) sums[m].even = sums[m].odd = _mm256_setzero_ps();
    const uint8_t* w = row;
    int64_t c = 0;
    const auto pieces = [&](auto count) {
      constexpr int kCount = decltype(count)::value;
      for (; c + kCount * kQuantPiece <= cols; c += kCount * kQuantPiece, w += kCount * kBytes) {
#pragma GCC unroll 4
        for (int i = 0; i < kCount; ++i, x += s.rows) {
          ask_ahead<kType>(w, i);
          add_piece<kType, M>(w + i * kBytes, scales, c + i * kQuantPiece, x, sums);
        }
      }
    };
    if constexpr (M == 1) pieces(std::integral_constant<int, kTogether>());
    pieces(std::integral_constant<int, 1>());
    if (c < cols) {  // the last blocks, and zeros for those that are missing
      alignas(32) uint8_t tail[kBytes] = {};
      std::memcpy(tail, w, static_cast<size_t>(row_bytes - (w - row)));
      add_piece<kType, M>(tail, scales, c, x, sums);
    }
    const float bias = s.bias ? s.bias[j] : 0.0f;
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) s.out[(m0 + m) * s.out_stride + j] = sum_of_lanes(_mm256_add_ps(sums[m].even, sums[m].odd)) + bias;
  }
}

inline void quant_gemv_256(const QuantGemvSlice& s) {
  with_type(s.w.type, [&](auto type) {
    constexpr WeightType kType = decltype(type)::value;
    constexpr void (*kProducts[])(const QuantGemvSlice&, int64_t, int64_t, int32_t) = {&products<kType, 1>, &products<kType, 2>,
                                                                                       &products<kType, 3>, &products<kType, 4>};
    in_passes<kMaxM>(s, [&](int64_t begin, int64_t end, int32_t m0, int32_t rows) { kProducts[rows - 1](s, begin, end, m0); });
  });
}

}  // namespace
}  // namespace fovea::cpu
