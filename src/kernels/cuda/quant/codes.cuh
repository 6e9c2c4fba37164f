// What quantised weights mean, on the device: a function object for each WeightType, over blocks as they lie (kernels/common/
// dequantize.h is the definition). An element is scale * code + minimum, where codes are small whole numbers (fp8: the element itself)
// and so exact in bf16. Codes come 8 at a time, as the tensor core wants them: `part` 0 to 3 of 32 consecutive elements has elements
// 4 part to 4 part + 3 and 16 more than those, in pairs (0, 2), (1, 3), (16, 18), (17, 19). Which element an operand's place stands
// for is free as long as the other operand agrees; this order falls out of all the layouts.
#pragma once

#include <fovea/kernels/weight.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace fovea::cuda::quant {

struct Pairs {
  uint32_t v[4];  // two bf16 each
};
struct Scales {
  float scale[2];    // of the first 16 of 32 elements and of the others
  float minimum[2];  // added
};

// ---- Reading and building

template <int kAlign>  // of p: 4, 2 or 1
__device__ __forceinline__ uint32_t load_32(const uint8_t* p) {
  if constexpr (kAlign == 4) {
    return *reinterpret_cast<const uint32_t*>(p);
  } else if constexpr (kAlign == 2) {
    const auto* h = reinterpret_cast<const uint16_t*>(p);
    return __byte_perm(h[0], h[1], 0x5410);
  } else {
    return __byte_perm(__byte_perm(p[0], p[1], 0x0040), __byte_perm(p[2], p[3], 0x0040), 0x5410);
  }
}
__device__ __forceinline__ float load_half(const uint8_t* p) { return __half2float(*reinterpret_cast<const __half*>(p)); }
__device__ __forceinline__ float2 load_halves(const uint8_t* p) { return __half22float2(*reinterpret_cast<const __half2*>(p)); }

__device__ __forceinline__ __nv_bfloat162 as_bf16x2(uint32_t v) { return *reinterpret_cast<const __nv_bfloat162*>(&v); }
__device__ __forceinline__ uint32_t as_bits(__nv_bfloat162 v) { return *reinterpret_cast<const uint32_t*>(&v); }
__device__ __forceinline__ uint32_t subtract(uint32_t a, uint32_t b) { return as_bits(__hsub2(as_bf16x2(a), as_bf16x2(b))); }
__device__ __forceinline__ uint32_t multiply(uint32_t a, uint32_t b) { return as_bits(__hmul2(as_bf16x2(a), as_bf16x2(b))); }

// bf16 has 7 bits of mantissa: a number c below 128 in the low bits of 128.0 is 128 + c.
inline constexpr uint32_t k128 = 0x43004300;
// c - less, of two codes in the low bits of two halves. less: below 128.
__device__ __forceinline__ uint32_t number(uint32_t codes, uint32_t less) { return subtract(codes | k128, k128 | less * 0x10001); }

// int8 x[4] as (0, 2) and (1, 3): less 128, or 256 where the sign says so.
__device__ __forceinline__ void signed_bytes(uint32_t x, uint32_t* out) {
#pragma unroll
  for (int i = 0; i < 2; ++i, x >>= 8) out[i] = subtract((x & 0x007f007f) | k128, (x & 0x00800080) | k128);
}

// Four bits each of x[4], bytes: the low halves as (0, 2), (1, 3), the high ones likewise.
__device__ __forceinline__ void split_halves(uint32_t x, uint32_t (&out)[4]) {
  out[0] = x & 0x000f000f, out[1] = x >> 8 & 0x000f000f, out[2] = x >> 4 & 0x000f000f, out[3] = x >> 12 & 0x000f000f;
}
// Bits [shift, shift + width) of bytes x[4] as (0, 2), (1, 3).
template <int kWidth>
__device__ __forceinline__ void split_bits(uint32_t x, int shift, uint32_t* out) {
  constexpr uint32_t kMask = ((1 << kWidth) - 1) * 0x10001;
  out[0] = x >> shift & kMask, out[1] = x >> (shift + 8) & kMask;
}

// ---- The types. kElements in kBytes; kGroup elements share a scale; kMinimums: Scales::minimum is not zero. Head: what is read of a
// block once. `b`: which 32 of its elements. `apart`: the group's entry in WeightView::scales.

template <WeightType kType>
struct Codes;

template <WeightType kType>
struct BlockOf {
  static constexpr WeightType kIs = kType;
  static constexpr int kElements = weight_format(kType).block == 1 ? 32 : weight_format(kType).block;
  static constexpr int kBytes = weight_format(kType).block == 1 ? 32 : weight_format(kType).bytes;
  static constexpr int kAlign = kBytes % 4 == 0 ? 4 : kBytes % 2 == 0 ? 2 : 1;
  static constexpr int kGroup = 32;
  static constexpr bool kMinimums = false;
  static constexpr bool kApart = weight_format(kType).scaled;
};

template <>
struct Codes<WeightType::q8_0> : BlockOf<WeightType::q8_0> {
  struct Head {
    float d;
  };
  static __device__ Head head(const uint8_t* p, uint32_t) { return {load_half(p)}; }
  static __device__ Scales scales(const uint8_t*, const Head& h, int) { return {{h.d, h.d}, {}}; }
  static __device__ Pairs codes(const uint8_t* p, const Head&, int, int part) {
    Pairs out;
    signed_bytes(load_32<kAlign>(p + 2 + 4 * part), out.v);
    signed_bytes(load_32<kAlign>(p + 18 + 4 * part), out.v + 2);
    return out;
  }
};

template <>
struct Codes<WeightType::int8> : BlockOf<WeightType::int8> {
  struct Head {
    float d;
  };
  static __device__ Head head(const uint8_t*, uint32_t apart) { return {__uint_as_float(apart)}; }
  static __device__ Scales scales(const uint8_t*, const Head& h, int) { return {{h.d, h.d}, {}}; }
  static __device__ Pairs codes(const uint8_t* p, const Head&, int, int part) {
    Pairs out;
    signed_bytes(load_32<kAlign>(p + 4 * part), out.v);
    signed_bytes(load_32<kAlign>(p + 16 + 4 * part), out.v + 2);
    return out;
  }
};

// e4m3 moved into the fields of bf16, whose exponent is by 120 greater; subnormal numbers are such there too.
template <>
struct Codes<WeightType::fp8_e4m3> : BlockOf<WeightType::fp8_e4m3> {
  struct Head {
    float d;
  };
  static __device__ Head head(const uint8_t*, uint32_t apart) { return {__uint_as_float(apart)}; }
  static __device__ Scales scales(const uint8_t*, const Head& h, int) { return {{h.d, h.d}, {}}; }
  static __device__ Pairs codes(const uint8_t* p, const Head&, int, int part) {
    constexpr uint32_t kTwoTo120 = 0x7b807b80;
    Pairs out;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t x = load_32<kAlign>(p + 16 * i + 4 * part);
      out.v[2 * i] = multiply((x & 0x007f007f) << 4 | (x & 0x00800080) << 8, kTwoTo120);
      out.v[2 * i + 1] = multiply((x & 0x7f007f00) >> 4 | (x & 0x80008000), kTwoTo120);
    }
    return out;
  }
};

template <>
struct Codes<WeightType::int4> : BlockOf<WeightType::int4> {
  struct Head {
    float d;
    uint32_t zero;
  };
  static __device__ Head head(const uint8_t*, uint32_t apart) { return {__uint_as_float(apart & ~255u), apart & 255}; }
  static __device__ Scales scales(const uint8_t*, const Head& h, int) { return {{h.d, h.d}, {}}; }
  static __device__ Pairs codes(const uint8_t* p, const Head& h, int, int part) {
    Pairs out;
    split_halves(load_32<kAlign>(p + 4 * part), out.v);
#pragma unroll
    for (uint32_t& v : out.v) v = number(v, h.zero);
    return out;
  }
};

// q4_0, q4_1, q5_0, q5_1: f16 d, (f16 m,) (fifth bits[4],) 4-bit x[32].
template <WeightType kType, int kLess, bool kMinimum, bool kFifth>
struct Legacy : BlockOf<kType> {
  using BlockOf<kType>::kAlign;
  static constexpr bool kMinimums = kMinimum;
  struct Head {
    float d, m;
  };
  static __device__ Head head(const uint8_t* p, uint32_t) {
    if constexpr (kMinimum) {
      const float2 both = load_halves(p);
      return {both.x, both.y};
    }
    return {load_half(p), 0.0f};
  }
  static __device__ Scales scales(const uint8_t*, const Head& h, int) { return {{h.d, h.d}, {h.m, h.m}}; }
  static __device__ Pairs codes(const uint8_t* p, const Head&, int, int part) {
    constexpr int kFifthAt = kMinimum ? 4 : 2, kAt = kFifthAt + (kFifth ? 4 : 0);
    Pairs out;
    split_halves(load_32<kAlign>(p + kAt + 4 * part), out.v);
    if constexpr (kFifth) {
      const uint32_t bits = load_32<kAlign>(p + kFifthAt) >> (4 * part);
#pragma unroll
      for (int i = 0; i < 2; ++i) {  // of the first 16, and of the others
        const uint32_t four = bits >> (16 * i);
        out.v[2 * i] |= (four & 1) << 4 | (four & 4) << 18;
        out.v[2 * i + 1] |= (four & 2) << 3 | (four & 8) << 17;
      }
    }
#pragma unroll
    for (uint32_t& v : out.v) v = number(v, kLess);
    return out;
  }
};
template <>
struct Codes<WeightType::q4_0> : Legacy<WeightType::q4_0, 8, false, false> {};
template <>
struct Codes<WeightType::q4_1> : Legacy<WeightType::q4_1, 0, true, false> {};
template <>
struct Codes<WeightType::q5_0> : Legacy<WeightType::q5_0, 16, false, true> {};
template <>
struct Codes<WeightType::q5_1> : Legacy<WeightType::q5_1, 0, true, true> {};

template <>
struct Codes<WeightType::q2_k> : BlockOf<WeightType::q2_k> {
  static constexpr int kGroup = 16;
  static constexpr bool kMinimums = true;
  struct Head {
    float2 d;  // of scales, of minimums
  };
  static __device__ Head head(const uint8_t* p, uint32_t) { return {load_halves(p + 80)}; }
  static __device__ Scales scales(const uint8_t* p, const Head& h, int b) {
    const uint32_t both = *reinterpret_cast<const uint16_t*>(p + 2 * b);
    Scales out;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      out.scale[i] = h.d.x * static_cast<float>(both >> (8 * i) & 15);
      out.minimum[i] = -h.d.y * static_cast<float>(both >> (8 * i + 4) & 15);
    }
    return out;
  }
  static __device__ Pairs codes(const uint8_t* p, const Head&, int b, int part) {
    Pairs out;
#pragma unroll
    for (int i = 0; i < 2; ++i) split_bits<2>(load_32<kAlign>(p + 16 + b / 4 * 32 + 16 * i + 4 * part), 2 * (b % 4), out.v + 2 * i);
#pragma unroll
    for (uint32_t& v : out.v) v = number(v, 0);
    return out;
  }
};

template <>
struct Codes<WeightType::q3_k> : BlockOf<WeightType::q3_k> {
  static constexpr int kGroup = 16;
  struct Head {
    float d;
  };
  static __device__ Head head(const uint8_t* p, uint32_t) { return {load_half(p + 108)}; }
  static __device__ Scales scales(const uint8_t* p, const Head& h, int b) {
    const uint32_t low = *reinterpret_cast<const uint16_t*>(p + 96 + 2 * b % 8) >> (b / 4 * 4);
    const uint32_t high = *reinterpret_cast<const uint16_t*>(p + 104 + 2 * b % 4) >> (b / 2 * 2);
    Scales out{};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const auto scale = static_cast<int>((low >> (8 * i) & 15) | (high >> (8 * i) & 3) << 4) - 32;
      out.scale[i] = h.d * static_cast<float>(scale);
    }
    return out;
  }
  static __device__ Pairs codes(const uint8_t* p, const Head&, int b, int part) {
    Pairs out;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = 16 * i + 4 * part;
      uint32_t third[2];
      split_bits<1>(load_32<kAlign>(p + at), b, third);
      split_bits<2>(load_32<kAlign>(p + 32 + b / 4 * 32 + at), 2 * (b % 4), out.v + 2 * i);
      out.v[2 * i] |= third[0] << 2, out.v[2 * i + 1] |= third[1] << 2;
    }
#pragma unroll
    for (uint32_t& v : out.v) v = number(v, 4);
    return out;
  }
};

// q4_k and q5_k: f16 d, f16 dmin, scales[12], (fifth bits[32],) 4-bit x[256].
template <WeightType kType, bool kFifth>
struct Super : BlockOf<kType> {
  using BlockOf<kType>::kAlign;
  static constexpr bool kMinimums = true;
  struct Head {
    float2 d;                 // of scales, of minimums
    uint32_t scale[2], minimum[2];  // a byte for each 32 elements
  };
  static __device__ Head head(const uint8_t* p, uint32_t) {
    const uint32_t low = load_32<4>(p + 4), mid = load_32<4>(p + 8), both = load_32<4>(p + 12);
    return {load_halves(p),
            {low & 0x3f3f3f3f, (both & 0x0f0f0f0f) | (low >> 2 & 0x30303030)},
            {mid & 0x3f3f3f3f, (both >> 4 & 0x0f0f0f0f) | (mid >> 2 & 0x30303030)}};
  }
  static __device__ Scales scales(const uint8_t*, const Head& h, int b) {
    const float scale = h.d.x * byte(h.scale[b / 4], b % 4), minimum = -h.d.y * byte(h.minimum[b / 4], b % 4);
    return {{scale, scale}, {minimum, minimum}};
  }
  // By the mantissa of 2^23: conversions run at a quarter of the rate.
  static __device__ float byte(uint32_t bytes, int i) { return __uint_as_float(__byte_perm(bytes, 0x4b000000, 0x7540 + i)) - 0x1p23f; }
  static __device__ Pairs codes(const uint8_t* p, const Head&, int b, int part) {
    constexpr int kAt = kFifth ? 48 : 16;
    Pairs out;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = 16 * i + 4 * part;
      split_bits<4>(load_32<4>(p + kAt + b / 2 * 32 + at), b % 2 * 4, out.v + 2 * i);
      if constexpr (kFifth) {
        uint32_t fifth[2];
        split_bits<1>(load_32<4>(p + 16 + at), b, fifth);
        out.v[2 * i] |= fifth[0] << 4, out.v[2 * i + 1] |= fifth[1] << 4;
      }
    }
#pragma unroll
    for (uint32_t& v : out.v) v = number(v, 0);
    return out;
  }
};
template <>
struct Codes<WeightType::q4_k> : Super<WeightType::q4_k, false> {};
template <>
struct Codes<WeightType::q5_k> : Super<WeightType::q5_k, true> {};

template <>
struct Codes<WeightType::q6_k> : BlockOf<WeightType::q6_k> {
  static constexpr int kGroup = 16;
  struct Head {
    float d;
  };
  static __device__ Head head(const uint8_t* p, uint32_t) { return {load_half(p + 208)}; }
  static __device__ Scales scales(const uint8_t* p, const Head& h, int b) {
    const uint32_t both = *reinterpret_cast<const uint16_t*>(p + 192 + 2 * b);
    return {{h.d * static_cast<float>(static_cast<int8_t>(both & 255)), h.d * static_cast<float>(static_cast<int8_t>(both >> 8))}, {}};
  }
  static __device__ Pairs codes(const uint8_t* p, const Head&, int b, int part) {
    Pairs out;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = 16 * i + 4 * part;
      uint32_t high[2];
      split_bits<4>(load_32<kAlign>(p + b / 4 * 64 + b % 2 * 32 + at), b % 4 / 2 * 4, out.v + 2 * i);
      split_bits<2>(load_32<kAlign>(p + 128 + b / 4 * 32 + at), 2 * (b % 4), high);
      out.v[2 * i] |= high[0] << 4, out.v[2 * i + 1] |= high[1] << 4;
    }
#pragma unroll
    for (uint32_t& v : out.v) v = number(v, 32);
    return out;
  }
};

// The numbers that 4-bit codes of iq4_nl and iq4_xs stand for (kIq4Values), a byte each.
__device__ __forceinline__ Pairs iq4_values(uint32_t x) {
  constexpr uint32_t kTable[4] = {0xbfad9881, 0xf6eaddcf, 0x26190d01, 0x71594535};
  uint32_t four[2];  // of two bytes of x: low, high, low, high
#pragma unroll
  for (int i = 0; i < 2; ++i, x >>= 16) {
    const uint32_t low = __byte_perm(kTable[0], kTable[1], x & 0x7777), high = __byte_perm(kTable[2], kTable[3], x & 0x7777);
    four[i] = __byte_perm(low, high, 0x3210 | (x & 0x8888) >> 1);
  }
  Pairs out;
  signed_bytes(__byte_perm(four[0], four[1], 0x6420), out.v);
  signed_bytes(__byte_perm(four[0], four[1], 0x7531), out.v + 2);
  return out;
}

template <>
struct Codes<WeightType::iq4_nl> : BlockOf<WeightType::iq4_nl> {
  struct Head {
    float d;
  };
  static __device__ Head head(const uint8_t* p, uint32_t) { return {load_half(p)}; }
  static __device__ Scales scales(const uint8_t*, const Head& h, int) { return {{h.d, h.d}, {}}; }
  static __device__ Pairs codes(const uint8_t* p, const Head&, int, int part) { return iq4_values(load_32<kAlign>(p + 2 + 4 * part)); }
};

template <>
struct Codes<WeightType::iq4_xs> : BlockOf<WeightType::iq4_xs> {
  struct Head {
    float d;
    uint32_t high, low;
  };
  static __device__ Head head(const uint8_t* p, uint32_t) {
    return {load_half(p), *reinterpret_cast<const uint16_t*>(p + 2), load_32<kAlign>(p + 4)};
  }
  static __device__ Scales scales(const uint8_t*, const Head& h, int b) {
    const auto scale = static_cast<int>((h.low >> (4 * b) & 15) | (h.high >> (2 * b) & 3) << 4) - 32;
    const float d = h.d * static_cast<float>(scale);
    return {{d, d}, {}};
  }
  static __device__ Pairs codes(const uint8_t* p, const Head&, int b, int part) {
    return iq4_values(load_32<kAlign>(p + 8 + 16 * b + 4 * part));
  }
};

// e2m1 moved into the fields of bf16, and twice it: the other half of the power of two is in the scale.
template <>
struct Codes<WeightType::mxfp4> : BlockOf<WeightType::mxfp4> {
  struct Head {
    float d;
  };
  static __device__ Head head(const uint8_t* p, uint32_t) {
    const uint32_t e = p[0];
    return {__uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23)};
  }
  static __device__ Scales scales(const uint8_t*, const Head& h, int) { return {{h.d, h.d}, {}}; }
  static __device__ Pairs codes(const uint8_t* p, const Head&, int, int part) {
    constexpr uint32_t kTwoTo127 = 0x7f007f00;
    Pairs out;
    split_halves(load_32<kAlign>(p + 1 + 4 * part), out.v);
#pragma unroll
    for (uint32_t& v : out.v) v = multiply((v & 0x00070007) << 6 | (v & 0x00080008) << 12, kTwoTo127);
    return out;
  }
};

// Calls f(Codes<type>()). Any type but plain ones.
template <WeightType kFirst = WeightType::q8_0, typename F>
void with_codes(WeightType type, F&& f) {
  if (type == kFirst) return f(Codes<kFirst>());
  if constexpr (static_cast<int>(kFirst) + 1 < kWeightTypes) with_codes<static_cast<WeightType>(static_cast<int>(kFirst) + 1)>(type, f);
}

}  // namespace fovea::cuda::quant
