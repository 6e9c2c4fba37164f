// Products of pairs of bf16 numbers, by AVX-512's instruction or, with FOVEA_DOT_EMULATE, by what Intel says that it computes. Included
// between the attributes that allow either.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace fovea::cpu {
namespace {

// sum[i] += a[2 i] b[2 i] + a[2 i + 1] b[2 i + 1]
inline __m512 dot(__m512 sum, __m512i a, __m512i b) {
#ifndef FOVEA_DOT_EMULATE
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
#else
  const __m512i high = _mm512_set1_epi32(static_cast<int32_t>(0xffff0000u));
  const auto odd = [&](__m512i x) { return _mm512_castsi512_ps(_mm512_and_si512(x, high)); };
  const auto even = [&](__m512i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)); };
  return _mm512_fmadd_ps(even(a), even(b), _mm512_fmadd_ps(odd(a), odd(b), sum));
#endif
}

inline __m512i broadcast_pair(const uint16_t* at) {
  int32_t pair;
  std::memcpy(&pair, at, 4);
  return _mm512_set1_epi32(pair);
}

}  // namespace
}  // namespace fovea::cpu
