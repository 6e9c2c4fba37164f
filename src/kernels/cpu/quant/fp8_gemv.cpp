// In intrinsics: the seven low bits of an e4m3 number, four places up from where float16 has its lowest exponents, are that number
// over 256 as a float16, subnormal ones too, and one instruction makes floats of those.
#include "kernels/cpu/quant/fp8_gemv.h"

#include "base/check.h"

#if defined(__x86_64__)
#include <hwy/base.h>
#include <immintrin.h>

#include <algorithm>

#pragma GCC diagnostic push  // GCC 12's own headers leave registers undefined on purpose
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx2,fma,f16c")

namespace fovea::cpu {
namespace {

constexpr int kMaxM = 4;       // rows of x that share widened weights
constexpr int64_t kStep = 64;  // elements: four chains of sums, each long enough to wait for
constexpr int64_t kPrefetchBytes = 4096;

// 64 weights over 256.
inline __attribute__((always_inline)) void widen(__m512i bytes, __m512 (&out)[4]) {
  const __m512i bits = _mm512_set1_epi16(static_cast<short>(0xbf80));  // sign, then exponent and mantissa one place lower
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const __m256i of_half = half == 0 ? _mm512_castsi512_si256(bytes) : _mm512_extracti64x4_epi64(bytes, 1);
    const __m512i high = _mm512_slli_epi16(_mm512_cvtepu8_epi16(of_half), 8);
    const __m512i f16 = _mm512_and_si512(_mm512_srai_epi16(high, 1), bits);
    out[2 * half] = _mm512_cvtph_ps(_mm512_castsi512_si256(f16));
    out[2 * half + 1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(f16, 1));
  }
}

template <int M>
void row_product(const Fp8GemvSlice& s, int64_t j, int32_t m0) {
  const uint8_t* w = s.w.row(j);
  const float* x = s.x + m0 * s.x_stride;
  const auto* scales = static_cast<const float*>(s.w.scales) + j * s.w.scales_per_row();
  __m512 total[M];
#pragma GCC unroll 4
  for (int m = 0; m < M; ++m) total[m] = _mm512_setzero_ps();
  for (int64_t begin = 0; begin < s.w.cols; begin += s.w.group, ++scales) {
    const int64_t end = std::min<int64_t>(s.w.cols, begin + s.w.group);
    __m512 sum[M][4];
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) sum[m][i] = _mm512_setzero_ps();
    }
    int64_t c = begin;
    for (; c + kStep <= end; c += kStep) {
      _mm_prefetch(reinterpret_cast<const char*>(w + c + kPrefetchBytes), _MM_HINT_T1);
      __m512 wide[4];
      widen(_mm512_loadu_si512(w + c), wide);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m)
          sum[m][i] = _mm512_fmadd_ps(wide[i], _mm512_loadu_ps(x + m * s.x_stride + c + 16 * i), sum[m][i]);
      }
    }
    if (c < end) {
      __m512 wide[4];
      widen(_mm512_maskz_loadu_epi8((__mmask64{1} << (end - c)) - 1, w + c), wide);
      for (int i = 0; i < 4; ++i) {
        const auto there = static_cast<__mmask16>((1u << std::clamp<int64_t>(end - c - 16 * i, 0, 16)) - 1);
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m)
          sum[m][i] = _mm512_fmadd_ps(wide[i], _mm512_maskz_loadu_ps(there, x + m * s.x_stride + c + 16 * i), sum[m][i]);
      }
    }
    const __m512 scale = _mm512_set1_ps(*scales * 256.0f);
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) {
      const __m512 all = _mm512_add_ps(_mm512_add_ps(sum[m][0], sum[m][1]), _mm512_add_ps(sum[m][2], sum[m][3]));
      total[m] = _mm512_fmadd_ps(all, scale, total[m]);
    }
  }
  const float bias = s.bias ? s.bias[j] : 0.0f;
#pragma GCC unroll 4
  for (int m = 0; m < M; ++m) s.out[(m0 + m) * s.out_stride + j] = _mm512_reduce_add_ps(total[m]) + bias;
}

}  // namespace

void fp8_gemv(const Fp8GemvSlice& s) {
  FOVEA_CHECK(s.w.type == WeightType::fp8_e4m3 && s.rows >= 1 && s.rows <= 16);
  constexpr void (*kProducts[])(const Fp8GemvSlice&, int64_t, int32_t) = {&row_product<1>, &row_product<2>, &row_product<3>,
                                                                          &row_product<4>};
  for (int64_t j = 0; j < s.w.rows; ++j) {
    for (int32_t m0 = 0; m0 < s.rows; m0 += kMaxM) kProducts[std::min(kMaxM, s.rows - m0) - 1](s, j, m0);
  }
}

}  // namespace fovea::cpu

HWY_POP_ATTRIBUTES
#pragma GCC diagnostic pop

#else

namespace fovea::cpu {
void fp8_gemv(const Fp8GemvSlice&) { FOVEA_CHECK(false && "fp8_gemv: not on this CPU"); }
}  // namespace fovea::cpu

#endif
