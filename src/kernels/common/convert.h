// 16-bit floats and fp8 (e4m3 and e5m2) to float32 and back: exact one way, rounded to nearest even the other; a NaN
// stays a NaN of its sign. Scalar and branch-light: what every kernel's conversion must equal bit for bit.
#pragma once

#include <fovea/types.h>

#include <bit>
#include <cstdint>

#include "base/check.h"

namespace fovea {

inline float bf16_to_f32(uint16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }

inline uint16_t f32_to_bf16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);  // quiet NaN, never Inf
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

inline float f16_to_f32(uint16_t x) {
  const uint32_t sign = static_cast<uint32_t>(x & 0x8000u) << 16;
  const uint32_t exponent = (x >> 10) & 0x1fu;
  const uint32_t mantissa = x & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact in float32
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  if (exponent == 31) {  // infinity, or NaN made quiet as hardware does
    return std::bit_cast<float>(sign | 0x7f800000u | (mantissa ? 0x400000u : 0u) | (mantissa << 13));
  }
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

inline uint16_t f32_to_f16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const uint32_t sign = (u >> 16) & 0x8000u;
  const uint32_t a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | ((a >> 13) & 0x3ffu));
  if (a >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // >= 65520 rounds to infinity
  if (a >= 0x38800000u) {                                              // normal: >= 2^-14
    const uint32_t rounded = a + 0xfffu + ((a >> 13) & 1u);
    return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
  }
  if (a < 0x33000000u) return static_cast<uint16_t>(sign);  // < 2^-25: zero
  const uint32_t shift = 126u - (a >> 23);                  // in [14, 24]: the subnormal's unit is 2^-24
  const uint32_t mantissa = (a & 0x7fffffu) | 0x800000u;
  const uint32_t half = 1u << (shift - 1);
  const uint32_t rounded = (mantissa + half - 1u + ((mantissa >> shift) & 1u)) >> shift;
  return static_cast<uint16_t>(sign | rounded);
}

// e4m3 as OCP's FP8 defines it ("e4m3fn"): bias 7, no infinity, NaN only with all seven low bits set, largest
// 448.
inline float fp8_e4m3_to_f32(uint8_t x) {
  const uint32_t sign = static_cast<uint32_t>(x & 0x80u) << 24;
  const uint32_t exponent = (x >> 3) & 0xfu;
  const uint32_t mantissa = x & 0x7u;
  if ((x & 0x7fu) == 0x7fu) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-9
    const float magnitude = static_cast<float>(mantissa) * 0x1p-9f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  return std::bit_cast<float>(sign | ((exponent + 120u) << 23) | (mantissa << 20));
}

// What is too large, infinity among it, becomes the largest finite value.
inline uint8_t f32_to_fp8_e4m3(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const uint32_t sign = (u >> 24) & 0x80u;
  const uint32_t a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return static_cast<uint8_t>(sign | 0x7fu);
  if (a >= 0x43e00000u) return static_cast<uint8_t>(sign | 0x7eu);  // >= 448
  if (a >= 0x3c800000u) {                                           // normal: >= 2^-6
    const uint32_t rounded = a + 0x7ffffu + ((a >> 20) & 1u);
    return static_cast<uint8_t>(sign | ((rounded - 0x3c000000u) >> 20));
  }
  if (a < 0x3a800000u) return static_cast<uint8_t>(sign);  // < 2^-10: zero
  const uint32_t shift = 141u - (a >> 23);                 // in [21, 24]: the subnormal's unit is 2^-9
  const uint32_t mantissa = (a & 0x7fffffu) | 0x800000u;
  const uint32_t half = 1u << (shift - 1);
  const uint32_t rounded = (mantissa + half - 1u + ((mantissa >> shift) & 1u)) >> shift;
  return static_cast<uint8_t>(sign | rounded);
}

// e5m2: the upper half of a f16, with its infinities and NaN; largest finite 57344.
inline float fp8_e5m2_to_f32(uint8_t x) { return f16_to_f32(static_cast<uint16_t>(x << 8)); }

// Saturating likewise.
inline uint8_t f32_to_fp8_e5m2(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const uint32_t sign = (u >> 24) & 0x80u;
  const uint32_t a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return static_cast<uint8_t>(sign | 0x7fu);
  if (a >= 0x47600000u) return static_cast<uint8_t>(sign | 0x7bu);  // >= 57344
  if (a >= 0x38800000u) {                                           // normal: >= 2^-14
    const uint32_t rounded = a + 0xfffffu + ((a >> 21) & 1u);
    return static_cast<uint8_t>(sign | ((rounded - 0x38000000u) >> 21));
  }
  if (a < 0x37000000u) return static_cast<uint8_t>(sign);  // < 2^-17: zero
  const uint32_t shift = 134u - (a >> 23);                 // in [22, 24]: the subnormal's unit is 2^-16
  const uint32_t mantissa = (a & 0x7fffffu) | 0x800000u;
  const uint32_t half = 1u << (shift - 1);
  const uint32_t rounded = (mantissa + half - 1u + ((mantissa >> shift) & 1u)) >> shift;
  return static_cast<uint8_t>(sign | rounded);
}

// Largest finite value of an fp8 dtype.
constexpr float fp8_max(DType dtype) { return dtype == DType::fp8_e5m2 ? 57344.0f : 448.0f; }

// Element i of an array of f32, f16, bf16 or fp8.
inline float load_as_f32(const void* p, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::f32:
      return static_cast<const float*>(p)[i];
    case DType::f16:
      return f16_to_f32(static_cast<const uint16_t*>(p)[i]);
    case DType::bf16:
      return bf16_to_f32(static_cast<const uint16_t*>(p)[i]);
    case DType::fp8_e4m3:
      return fp8_e4m3_to_f32(static_cast<const uint8_t*>(p)[i]);
    case DType::fp8_e5m2:
      return fp8_e5m2_to_f32(static_cast<const uint8_t*>(p)[i]);
    default:
      FOVEA_CHECK(false && "load_as_f32: a float dtype");
  }
}

inline void store_f32(void* p, DType dtype, int64_t i, float x) {
  switch (dtype) {
    case DType::f32:
      static_cast<float*>(p)[i] = x;
      return;
    case DType::f16:
      static_cast<uint16_t*>(p)[i] = f32_to_f16(x);
      return;
    case DType::bf16:
      static_cast<uint16_t*>(p)[i] = f32_to_bf16(x);
      return;
    case DType::fp8_e4m3:
      static_cast<uint8_t*>(p)[i] = f32_to_fp8_e4m3(x);
      return;
    case DType::fp8_e5m2:
      static_cast<uint8_t*>(p)[i] = f32_to_fp8_e5m2(x);
      return;
    default:
      FOVEA_CHECK(false && "store_f32: a float dtype");
  }
}

}  // namespace fovea
