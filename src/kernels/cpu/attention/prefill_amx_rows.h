// Rows of the cache as bf16, for the bf16 engines: what they do not read in place. Included between the attributes that allow
// AVX-512 (prefill_amx_inl.h, prefill_dot_inl.h, xattention_amx_inl.h).
#pragma once

#include <fovea/kernels/attention.h>

#include <immintrin.h>

#include <cstdint>

#include "kernels/common/convert.h"
#include "kernels/cpu/attention/prefill_keys.h"

namespace fovea::cpu {
namespace {

// Rounded to nearest even, as f32_to_bf16: a NaN stays a NaN.
inline __m256i round_bf16(__m512 x) {
  const __m512i u = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  __m512i r = _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  r = _mm512_mask_or_epi32(r, nan, _mm512_srli_epi32(u, 16), _mm512_set1_epi32(0x40));
  return _mm512_cvtepi32_epi16(r);
}

// 16 elements of fp8, as kernels/cpu/elementwise/fp8_inl.h has them.
inline __m512 widen_fp8(const uint8_t* p, DType dtype) {
  const __m256i x = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  if (dtype == DType::fp8_e5m2) return _mm512_cvtph_ps(_mm256_slli_epi16(x, 8));
  const __m256i low = _mm256_set1_epi16(0x7f);
  const __m256i nan = _mm256_and_si256(_mm256_cmpeq_epi16(_mm256_and_si256(x, low), low), _mm256_set1_epi16(0x7c00));
  const __m256i moved = _mm256_and_si256(_mm256_slli_epi16(x, 7), _mm256_set1_epi16(static_cast<int16_t>(0xbf80)));
  return _mm512_mul_ps(_mm512_cvtph_ps(_mm256_or_si256(moved, nan)), _mm512_set1_ps(256.0f));
}

// One key's K or V to bf16, hnd.
inline void convert_row(const void* data, DType dtype, int64_t at, int32_t dim, uint16_t* to) {
  for (int32_t i = 0; i < dim; i += 16) {
    __m256i x;
    if (dtype == DType::f32) {
      x = round_bf16(_mm512_loadu_ps(static_cast<const float*>(data) + at + i));
    } else if (is_fp8(dtype)) {
      x = round_bf16(widen_fp8(static_cast<const uint8_t*>(data) + at + i, dtype));  // exact
    } else {
      x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(static_cast<const uint16_t*>(data) + at + i));
      if (dtype == DType::f16) x = round_bf16(_mm512_cvtph_ps(x));
    }
    _mm256_store_si256(reinterpret_cast<__m256i*>(to + i), x);
  }
}

inline uint16_t element_bf16(const void* data, DType dtype, int64_t at) {
  return dtype == DType::bf16 ? static_cast<const uint16_t*>(data)[at] : f32_to_bf16(load_as_f32(data, dtype, at));
}

inline void convert_k(const KvView& kv, const KeyRun& run, int32_t i, uint16_t* to) {
  const int64_t token = run.offset + i;
  if (kv.layout == KvLayout::hnd) {
    convert_row(kv.k, kv.dtype, run.base + token * kv.tokens_apart(), kv.head_dim, to);
    return;
  }
  const int64_t x = 16 / static_cast<int64_t>(dtype_bytes(kv.dtype));
  for (int64_t e = 0; e < kv.head_dim; ++e) {
    to[e] = element_bf16(kv.k, kv.dtype, run.base + (e / x * kv.block_size + token) * x + e % x);
  }
}

inline void convert_v(const KvView& kv, const KeyRun& run, int32_t i, uint16_t* to) {
  const int64_t token = run.offset + i;
  if (kv.layout == KvLayout::hnd) {
    convert_row(kv.v, kv.dtype, run.base + token * kv.tokens_apart(), kv.head_dim, to);
    return;
  }
  for (int64_t e = 0; e < kv.head_dim; ++e) {
    to[e] = element_bf16(kv.v, kv.dtype, run.base + e * kv.block_size + token);
  }
}

}  // namespace
}  // namespace fovea::cpu
