// quant_gemv over interleaved weights (interleave.h) with AVX-512 VNNI: a lane of every sum belongs to one of 16 rows of W, and x is
// broadcast. A piece of q4_k is half the instructions of one that is read as files have it. Nothing is asked for ahead: this code is
// short enough for the processor to run ahead of memory by itself, and prefetches took a third of its speed.
#include "kernels/cpu/quant/interleave.h"
#include "kernels/cpu/quant/quant_gemv.h"

#include "base/check.h"

#if defined(__x86_64__)
#include <hwy/base.h>
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#pragma GCC diagnostic push  // GCC 12's own headers leave registers undefined on purpose
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx512vnni,avx2,fma,f16c")

namespace fovea::cpu {
namespace {

#define FOVEA_INLINE inline __attribute__((always_inline))

constexpr int kMaxM = 4;  // rows of x that share a piece

FOVEA_INLINE __m512i unit(const uint8_t* w, int i) { return _mm512_loadu_si512(w + 64 * i); }
// Else the compiler folds the load into each of its uses.
FOVEA_INLINE __m512i keep(__m512i v) {
  asm("" : "+v"(v));
  return v;
}
FOVEA_INLINE __m512i four_codes(const int8_t* x) {
  int32_t v;
  std::memcpy(&v, x, sizeof(v));
  return _mm512_set1_epi32(v);
}
FOVEA_INLINE __m512i both(__m512i v, int mask) { return _mm512_and_si512(v, _mm512_set1_epi8(static_cast<char>(mask))); }
// a | (b & mask)
FOVEA_INLINE __m512i with(__m512i a, __m512i b, int mask) {
  return _mm512_ternarylogic_epi32(a, b, _mm512_set1_epi8(static_cast<char>(mask)), 0xf8);
}
template <int kByte>
FOVEA_INLINE __m512i unsigned_byte(__m512i v) {
  if constexpr (kByte == 0) return _mm512_and_si512(v, _mm512_set1_epi32(255));
  if constexpr (kByte == 3) return _mm512_srli_epi32(v, 24);
  const int none = static_cast<int>(0x80808000);
  return _mm512_shuffle_epi8(
      v, _mm512_add_epi32(_mm512_set1_epi32(none + kByte), _mm512_broadcast_i32x4(_mm_setr_epi32(0, 4, 8, 12))));
}
template <int kByte>
FOVEA_INLINE __m512i signed_byte(__m512i v) {
  return _mm512_srai_epi32(kByte == 3 ? v : _mm512_slli_epi32(v, 24 - 8 * kByte), 24);
}
FOVEA_INLINE __m512 halves_of(__m512i v) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v)); }
FOVEA_INLINE __m512 times(__m512i products, __m512i scale) { return _mm512_cvtepi32_ps(_mm512_mullo_epi32(products, scale)); }

// Adds 16 rows' products with a piece of each of M rows of x.
template <int M>
struct Q4K {
  static constexpr int kBytes = 144;

  const __m512i scales[2], mins[2];  // of four parts each, 6 bits in bytes

  FOVEA_INLINE static void add(const uint8_t* w, const QuantisedX* x, __m512 (&total)[M]) {
    const __m512i s = unit(w, 1), m = unit(w, 2), rest = unit(w, 3);
    const Q4K q = {{both(s, 0x3f), with(both(rest, 0x0f), _mm512_srli_epi32(s, 2), 0x30)},
                   {both(m, 0x3f), with(both(_mm512_srli_epi32(rest, 4), 0x0f), _mm512_srli_epi32(m, 2), 0x30)}};
    __m512 sum[M], less[M];
    for (int i = 0; i < M; ++i) sum[i] = less[i] = _mm512_setzero_ps();
    q.two_parts<0>(w, x, sum, less);
    q.two_parts<1>(w, x, sum, less);
    q.two_parts<2>(w, x, sum, less);
    q.two_parts<3>(w, x, sum, less);
    const __m512i factors = unit(w, 0);
    const __m512 value = halves_of(factors), offset = halves_of(_mm512_srli_epi32(factors, 16));
    for (int i = 0; i < M; ++i) total[i] = _mm512_fnmadd_ps(less[i], offset, _mm512_fmadd_ps(sum[i], value, total[i]));
  }

  template <int kPair>
  FOVEA_INLINE void two_parts(const uint8_t* w, const QuantisedX* x, __m512 (&sum)[M], __m512 (&less)[M]) const {
    __m512i even[M], odd[M];
    for (int i = 0; i < M; ++i) even[i] = odd[i] = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int u = 0; u < 8; ++u) {
      const __m512i v = keep(unit(w, 4 + 8 * kPair + u)), low = both(v, 15), high = _mm512_xor_si512(v, low);  // 16 times
      for (int i = 0; i < M; ++i) {
        even[i] = _mm512_dpbusd_epi32(even[i], low, four_codes(x[i].code + 64 * kPair + 4 * u));
        odd[i] = _mm512_dpbusd_epi32(odd[i], high, four_codes(x[i].code + 64 * kPair + 32 + 4 * u));
      }
    }
    constexpr int kByte = kPair % 2 * 2;
    const __m512i s = scales[kPair / 2], m = mins[kPair / 2];
    const __m512i scale = unsigned_byte<kByte>(s), next_scale = unsigned_byte<kByte + 1>(s);
    const __m512 min = _mm512_cvtepi32_ps(unsigned_byte<kByte>(m)), next_min = _mm512_cvtepi32_ps(unsigned_byte<kByte + 1>(m));
    for (int i = 0; i < M; ++i) {
      const float* x_scale = x[i].scale_of_32 + 2 * kPair;
      const float* x_sum = x[i].sum_of_32 + 2 * kPair;
      sum[i] = _mm512_fmadd_ps(times(even[i], scale), _mm512_set1_ps(x_scale[0]), sum[i]);
      sum[i] = _mm512_fmadd_ps(times(_mm512_srai_epi32(odd[i], 4), next_scale), _mm512_set1_ps(x_scale[1]), sum[i]);
      less[i] = _mm512_fmadd_ps(min, _mm512_set1_ps(x_sum[0]), less[i]);
      less[i] = _mm512_fmadd_ps(next_min, _mm512_set1_ps(x_sum[1]), less[i]);
    }
  }
};

template <int M>
struct Q6K {
  static constexpr int kBytes = 210;

  FOVEA_INLINE static void add(const uint8_t* w, const QuantisedX* x, __m512 (&total)[M]) {
    __m512 sum[M], less[M];
    for (int i = 0; i < M; ++i) sum[i] = less[i] = _mm512_setzero_ps();
    sixteens<0, 0>(w, x, sum, less);
    sixteens<0, 1>(w, x, sum, less);
    sixteens<1, 0>(w, x, sum, less);
    sixteens<1, 1>(w, x, sum, less);
    const __m512 value = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + 64 * 52)));
    for (int i = 0; i < M; ++i)
      total[i] = _mm512_fmadd_ps(_mm512_fnmadd_ps(less[i], _mm512_set1_ps(code_bias(WeightType::q6_k)), sum[i]), value, total[i]);
  }

  // Of the first or second halves of four parts of 32.
  template <int kHalf, int kSecond>
  FOVEA_INLINE static void sixteens(const uint8_t* w, const QuantisedX* x, __m512 (&sum)[M], __m512 (&less)[M]) {
    __m512i products[4][M];
    for (auto& of_part : products)
      for (int i = 0; i < M; ++i) of_part[i] = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int u = 4 * kSecond; u < 4 * kSecond + 4; ++u) {
      const int at = 26 * kHalf + 2 + 3 * u;
      const __m512i a = keep(unit(w, at)), b = keep(unit(w, at + 1)), high = keep(unit(w, at + 2));
      const __m512i codes[4] = {with(both(a, 15), _mm512_slli_epi32(high, 4), 0x30),
                                with(both(b, 15), _mm512_slli_epi32(high, 2), 0x30),
                                with(both(_mm512_srli_epi32(a, 4), 15), high, 0x30),
                                with(both(_mm512_srli_epi32(b, 4), 15), _mm512_srli_epi32(high, 2), 0x30)};
#pragma GCC unroll 4
      for (int p = 0; p < 4; ++p)
        for (int i = 0; i < M; ++i)
          products[p][i] = _mm512_dpbusd_epi32(products[p][i], codes[p], four_codes(x[i].code + 128 * kHalf + 32 * p + 4 * u));
    }
    const __m512i low = unit(w, 26 * kHalf), up = unit(w, 26 * kHalf + 1);
    add_part<8 * kHalf + kSecond>(signed_byte<kSecond>(low), products[0], x, sum, less);
    add_part<8 * kHalf + 2 + kSecond>(signed_byte<2 + kSecond>(low), products[1], x, sum, less);
    add_part<8 * kHalf + 4 + kSecond>(signed_byte<kSecond>(up), products[2], x, sum, less);
    add_part<8 * kHalf + 6 + kSecond>(signed_byte<2 + kSecond>(up), products[3], x, sum, less);
  }

  template <int kPart>
  FOVEA_INLINE static void add_part(__m512i scale, const __m512i (&products)[M], const QuantisedX* x, __m512 (&sum)[M],
                                    __m512 (&less)[M]) {
    const __m512 value = _mm512_cvtepi32_ps(scale);
    for (int i = 0; i < M; ++i) {
      sum[i] = _mm512_fmadd_ps(times(products[i], scale), _mm512_set1_ps(x[i].scale[kPart]), sum[i]);
      less[i] = _mm512_fmadd_ps(value, _mm512_set1_ps(x[i].sum[kPart]), less[i]);
    }
  }
};

// Rows [j, j + 16) of W with rows [m0, m0 + M) of x.
template <template <int> typename Block, int M>
void products(const QuantGemvSlice& s, int64_t j, int32_t m0) {
  __m512 total[M];
  for (__m512& t : total) t = _mm512_setzero_ps();
  const uint8_t* w = s.w.row(j);
  const QuantisedX* x = s.packed + m0;
  for (int64_t c = 0; c < s.w.cols; c += kQuantPiece, x += s.rows, w += kInterleavedRows * Block<M>::kBytes)
    Block<M>::add(w, x, total);
  const __m512 bias = s.bias ? _mm512_loadu_ps(s.bias + j) : _mm512_setzero_ps();
  for (int i = 0; i < M; ++i) _mm512_storeu_ps(s.out + (m0 + i) * s.out_stride + j, _mm512_add_ps(total[i], bias));
}

template <template <int> typename Block>
void run(const QuantGemvSlice& s) {
  const int32_t passes = (s.rows + kMaxM - 1) / kMaxM;
  const int32_t rows = (s.rows + passes - 1) / passes;  // of a pass; the last may have fewer
  for (int64_t j = 0; j < s.w.rows; j += kInterleavedRows) {
    for (int32_t m0 = 0; m0 < s.rows; m0 += rows) {
      switch (std::min(rows, s.rows - m0)) {
        case 1:
          products<Block, 1>(s, j, m0);
          break;
        case 2:
          products<Block, 2>(s, j, m0);
          break;
        case 3:
          products<Block, 3>(s, j, m0);
          break;
        default:
          products<Block, 4>(s, j, m0);
          break;
      }
    }
  }
}

}  // namespace

void quant_gemv_rows(const QuantGemvSlice& s) {
  FOVEA_CHECK(s.w.interleaved && s.w.rows % kInterleavedRows == 0);
  s.w.type == WeightType::q4_k ? run<Q4K>(s) : run<Q6K>(s);
}

}  // namespace fovea::cpu

HWY_POP_ATTRIBUTES
#pragma GCC diagnostic pop

#else

namespace fovea::cpu {
void quant_gemv_rows(const QuantGemvSlice&) { FOVEA_CHECK(false && "quant_gemv_rows: not on this CPU"); }
}  // namespace fovea::cpu

#endif
