// What quantised weights mean, on the device: a type for each WeightType, over blocks as they lie (kernels/common/dequantize.h is the
// definition). An element is scale * (code - less) + minimum, where codes are bytes; of fp8 alone they are bf16 numbers. They come 8 at
// a time: `part` 0 to 3 of 32 consecutive elements has elements 4 part to 4 part + 3 and 16 more than those, which is what a lane of
// the tensor core's int8 product holds, and falls out of all the layouts. As bf16, in which codes are exact, they are in pairs (0, 2),
// (1, 3), (16, 18), (17, 19): which element an operand's place stands for is free as long as the other operand agrees.
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

// (x & mask) | more: one instruction, which the compiler makes two of where both are constants.
template <uint32_t kMask>
__device__ __forceinline__ uint32_t and_or(uint32_t x, uint32_t more) {
  uint32_t out;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(out) : "r"(x), "n"(kMask), "r"(more));
  return out;
}

// Bytes x[4] as bf16 (0, 2) and (1, 3). bf16 has 7 bits of mantissa: a number c below 128 in the low bits of 128.0 is 128 + c.
inline constexpr uint32_t k128 = 0x43004300;
// x - less; both below 128.
__device__ __forceinline__ void unsigned_pairs(uint32_t x, uint32_t less, uint32_t* out) {
  const uint32_t base = k128 | less * 0x10001;
  out[0] = subtract(and_or<0x007f007f>(x, k128), base);
  out[1] = subtract(and_or<0x007f007f>(x >> 8, k128), base);
}
// Less 128, or 256 where the sign says so.
__device__ __forceinline__ void signed_pairs(uint32_t x, uint32_t* out) {
#pragma unroll
  for (int i = 0; i < 2; ++i, x >>= 8) out[i] = subtract(and_or<0x007f007f>(x, k128), and_or<0x00800080>(x, k128));
}

// Of sixteen bytes those that the 4-bit numbers of x[4], bytes, choose: by the low halves, by the high ones.
__device__ __forceinline__ uint2 look_up(uint32_t x, uint32_t t0, uint32_t t1, uint32_t t2, uint32_t t3) {
  uint32_t four[2];  // of two bytes of x: low, high, low, high
#pragma unroll
  for (int i = 0; i < 2; ++i, x >>= 16) {
    const uint32_t low = __byte_perm(t0, t1, x & 0x7777), high = __byte_perm(t2, t3, x & 0x7777);
    four[i] = __byte_perm(low, high, 0x3210 | (x & 0x8888) >> 1);
  }
  return {__byte_perm(four[0], four[1], 0x6420), __byte_perm(four[0], four[1], 0x7531)};
}
__device__ __forceinline__ uint2 halves(uint32_t x) { return {x & 0x0f0f0f0f, x >> 4 & 0x0f0f0f0f}; }

// ---- The types. kElements in kBytes; kGroup elements share a scale; kMinimums: Scales::minimum is not zero. Head: what is read of a
// block once. `b`: which 32 of its elements. `apart`: the group's entry in WeightView::scales.

template <WeightType kType>
struct BlockOf {
  static constexpr WeightType kIs = kType;
  static constexpr int kElements = weight_format(kType).block == 1 ? 32 : weight_format(kType).block;
  static constexpr int kBytes = weight_format(kType).block == 1 ? 32 : weight_format(kType).bytes;
  static constexpr int kAlign = kBytes % 4 == 0 ? 4 : kBytes % 2 == 0 ? 2 : 1;
  static constexpr int kGroup = 32;
  static constexpr bool kMinimums = false;
  static constexpr bool kApart = weight_format(kType).scaled;
  static constexpr bool kSigned = false;  // codes
  static constexpr bool kLess = false;    // less() is not zero
  template <typename Head>
  static __device__ uint32_t less(const Head&) {
    return 0;
  }
};

// One scale a block, as float16 before its bytes or apart.
template <WeightType kType>
struct OneScale : BlockOf<kType> {
  struct Head {
    float d;
  };
  static __device__ Head head(const uint8_t* p, uint32_t apart) {
    if constexpr (BlockOf<kType>::kApart) return {__uint_as_float(apart)};
    return {load_half(p)};
  }
  static __device__ Scales scales(const uint8_t*, const Head& h, int) { return {{h.d, h.d}, {}}; }
};

template <WeightType kType>
struct Codes;

template <>
struct Codes<WeightType::q8_0> : OneScale<WeightType::q8_0> {
  static constexpr bool kSigned = true;
  static __device__ uint2 bytes(const uint8_t* p, int, int part) {
    return {load_32<kAlign>(p + 2 + 4 * part), load_32<kAlign>(p + 18 + 4 * part)};
  }
};

template <>
struct Codes<WeightType::int8> : OneScale<WeightType::int8> {
  static constexpr bool kSigned = true;
  static __device__ uint2 bytes(const uint8_t* p, int, int part) {
    return {load_32<kAlign>(p + 4 * part), load_32<kAlign>(p + 16 + 4 * part)};
  }
  static __device__ void two_chunks(const uint8_t* p, int part, uint2 (&words)[2][4]) {  // for dot.cuh, in shared memory
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      const auto* from = reinterpret_cast<const uint4*>(p + 32 * (2 * part + t));
      const uint4 a = from[0], b = from[1];
      words[t][0] = {a.x, b.x}, words[t][1] = {a.y, b.y}, words[t][2] = {a.z, b.z}, words[t][3] = {a.w, b.w};
    }
  }
};

// e4m3 moved into the fields of bf16, whose exponent is by 120 greater; subnormal numbers are such there too.
template <>
struct Codes<WeightType::fp8_e4m3> : OneScale<WeightType::fp8_e4m3> {
  static __device__ Pairs pairs(const uint8_t* p, const Head&, int, int part) {
    constexpr uint32_t kTwoTo120 = 0x7b807b80;
    Pairs out;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t x = load_32<kAlign>(p + 16 * i + 4 * part);
      out.v[2 * i] = multiply(and_or<0x07f007f0>(x << 4, x << 8 & 0x80008000), kTwoTo120);
      out.v[2 * i + 1] = multiply(and_or<0x07f007f0>(x >> 4, x & 0x80008000), kTwoTo120);
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
  static constexpr bool kLess = true;
  static __device__ uint32_t less(const Head& h) { return h.zero; }
  static __device__ uint2 bytes(const uint8_t* p, int, int part) { return halves(load_32<kAlign>(p + 4 * part)); }
  static __device__ void two_chunks(const uint8_t* p, int part, uint2 (&words)[2][4]) {  // for dot.cuh, in shared memory
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      const uint4 v = *reinterpret_cast<const uint4*>(p + 16 * (2 * part + t));
      words[t][0] = halves(v.x), words[t][1] = halves(v.y), words[t][2] = halves(v.z), words[t][3] = halves(v.w);
    }
  }
};

// q4_0, q4_1, q5_0, q5_1: f16 d, (f16 m,) (fifth bits[4],) 4-bit x[32].
template <WeightType kType, int kZero, bool kMinimum, bool kFifth>
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
  static constexpr bool kLess = kZero > 0;
  static __device__ uint32_t less(const Head&) { return kZero; }
  static __device__ uint2 bytes(const uint8_t* p, int, int part) {
    constexpr int kFifthAt = kMinimum ? 4 : 2, kAt = kFifthAt + (kFifth ? 4 : 0);
    uint2 out = halves(load_32<kAlign>(p + kAt + 4 * part));
    if constexpr (kFifth) {
      const uint32_t bits = load_32<kAlign>(p + kFifthAt) >> (4 * part);
      out.x |= spread(bits & 15), out.y |= spread(bits >> 16 & 15);
    }
    return out;
  }
  // Four bits as the fifth ones of four bytes.
  static __device__ uint32_t spread(uint32_t four) { return (four * 0x00204081 & 0x01010101) << 4; }
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
  static __device__ uint2 bytes(const uint8_t* p, int b, int part) {
    const uint8_t* at = p + 16 + b / 4 * 32 + 4 * part;
    const int shift = 2 * (b % 4);
    return {load_32<kAlign>(at) >> shift & 0x03030303, load_32<kAlign>(at + 16) >> shift & 0x03030303};
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
  static constexpr bool kLess = true;
  static __device__ uint32_t less(const Head&) { return 4; }
  static __device__ uint2 bytes(const uint8_t* p, int b, int part) { return {four(p + 4 * part, b), four(p + 16 + 4 * part, b)}; }
  static __device__ uint32_t four(const uint8_t* p, int b) {
    return (load_32<kAlign>(p + 32 + b / 4 * 32) >> (2 * (b % 4)) & 0x03030303) | (load_32<kAlign>(p) >> b & 0x01010101) << 2;
  }
};

// q4_k and q5_k: f16 d, f16 dmin, scales[12], (fifth bits[32],) 4-bit x[256].
template <WeightType kType, bool kFifth>
struct Super : BlockOf<kType> {
  static constexpr bool kMinimums = true;
  struct Head {
    float2 d;                       // of scales, of minimums
    uint32_t scale[2], minimum[2];  // a byte for each 32 elements
  };
  static __device__ Head head(const uint8_t* p, uint32_t) {
    const uint32_t low = load_32<4>(p + 4), mid = load_32<4>(p + 8), both = load_32<4>(p + 12);
    return {load_halves(p),
            {low & 0x3f3f3f3f, (both & 0x0f0f0f0f) | (low >> 2 & 0x30303030)},
            {mid & 0x3f3f3f3f, (both >> 4 & 0x0f0f0f0f) | (mid >> 2 & 0x30303030)}};
  }
  static __device__ Scales scales(const uint8_t*, const Head& h, int b) {
    const float scale = h.d.x * byte(b < 4 ? h.scale[0] : h.scale[1], b % 4);
    const float minimum = -h.d.y * byte(b < 4 ? h.minimum[0] : h.minimum[1], b % 4);
    return {{scale, scale}, {minimum, minimum}};
  }
  // By the mantissa of 2^23: conversions run at a quarter of the rate.
  static __device__ float byte(uint32_t bytes, int i) {
    return __uint_as_float(__byte_perm(bytes, 0x4b000000, 0x7540 + i)) - 0x1p23f;
  }
  static __device__ uint2 bytes(const uint8_t* p, int b, int part) { return {four(p, b, 4 * part), four(p, b, 16 + 4 * part)}; }
  static __device__ uint32_t four(const uint8_t* p, int b, int at) {
    const uint32_t low = load_32<4>(p + (kFifth ? 48 : 16) + b / 2 * 32 + at) >> (b % 2 * 4) & 0x0f0f0f0f;
    if constexpr (kFifth) return low | (load_32<4>(p + 16 + at) >> b & 0x01010101) << 4;
    return low;
  }
};
template <>
struct Codes<WeightType::q4_k> : Super<WeightType::q4_k, false> {
  // For dot.cuh, in shared memory: chunks 2 part and 2 part + 1; bytes of the second are 16 times its codes.
  static __device__ void two_chunks(const uint8_t* p, int part, uint2 (&words)[2][4]) {
    const auto* from = reinterpret_cast<const uint4*>(p + 16 + 32 * part);
    const uint4 a = from[0], b = from[1];
    const uint32_t first[4] = {a.x, a.y, a.z, a.w}, second[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      words[0][w] = {first[w] & 0x0f0f0f0f, second[w] & 0x0f0f0f0f};
      words[1][w] = {first[w] & 0xf0f0f0f0, second[w] & 0xf0f0f0f0};
    }
  }
  static __device__ void two_scales(const uint8_t* p, int part, float (&scale)[2][2], float (&added)[2][2]) {
    const uint4 h = *reinterpret_cast<const uint4*>(p);
    const uint32_t pair = part % 2 ? 0x7632 : 0x5410;
    const uint32_t x = __byte_perm(h.y, h.z, pair), y = __byte_perm(h.w, h.w >> 4, pair);
    const uint32_t bytes = part < 2 ? x & 0x3f3f3f3f : (y & 0x0f0f0f0f) | (x >> 2 & 0x30303030);  // two scales, two minimums
    const float2 d = __half22float2(*reinterpret_cast<const __half2*>(&h.x));
    scale[0][0] = d.x * byte(bytes, 0), scale[1][0] = 0.0625f * d.x * byte(bytes, 1);
    added[0][0] = -d.y * byte(bytes, 2), added[1][0] = -d.y * byte(bytes, 3);
  }
};
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
    return {{h.d * static_cast<float>(static_cast<int8_t>(both & 255)), h.d * static_cast<float>(static_cast<int8_t>(both >> 8))},
            {}};
  }
  static constexpr bool kLess = true;
  static __device__ uint32_t less(const Head&) { return 32; }
  static __device__ uint2 bytes(const uint8_t* p, int b, int part) { return {four(p + 4 * part, b), four(p + 16 + 4 * part, b)}; }
  static __device__ uint32_t four(const uint8_t* p, int b) {
    return (load_32<kAlign>(p + b / 4 * 64 + b % 2 * 32) >> (b % 4 / 2 * 4) & 0x0f0f0f0f) |
           (load_32<kAlign>(p + 128 + b / 4 * 32) >> (2 * (b % 4)) & 0x03030303) << 4;
  }
};

__device__ __forceinline__ uint2 iq4_bytes(uint32_t x) {
  return look_up(x, 0xbfad9881, 0xf6eaddcf, 0x26190d01, 0x71594535);
}  // kIq4Values

template <>
struct Codes<WeightType::iq4_nl> : OneScale<WeightType::iq4_nl> {
  static constexpr bool kSigned = true;
  static __device__ uint2 bytes(const uint8_t* p, int, int part) { return iq4_bytes(load_32<kAlign>(p + 2 + 4 * part)); }
};

template <>
struct Codes<WeightType::iq4_xs> : BlockOf<WeightType::iq4_xs> {
  static constexpr bool kSigned = true;
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
  static __device__ uint2 bytes(const uint8_t* p, int b, int part) { return iq4_bytes(load_32<kAlign>(p + 8 + 16 * b + 4 * part)); }
};

template <>
struct Codes<WeightType::mxfp4> : BlockOf<WeightType::mxfp4> {
  static constexpr bool kSigned = true;
  struct Head {
    float d;
  };
  static __device__ Head head(const uint8_t* p, uint32_t) {  // half of the power of two: codes are twice the numbers
    const uint32_t e = p[0];
    return {__uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23)};
  }
  static __device__ Scales scales(const uint8_t*, const Head& h, int) { return {{h.d, h.d}, {}}; }
  static __device__ uint2 bytes(const uint8_t* p, int, int part) {  // kMxfp4Values
    return look_up(load_32<kAlign>(p + 1 + 4 * part), 0x03020100, 0x0c080604, 0xfdfeff00, 0xf4f8fafc);
  }
};

// code - less, as bf16.
template <typename C>
__device__ __forceinline__ Pairs pairs_of(const uint8_t* p, const typename C::Head& h, int b, int part) {
  if constexpr (C::kIs == WeightType::fp8_e4m3) {
    return C::pairs(p, h, b, part);
  } else {
    const uint2 bytes = C::bytes(p, b, part);
    Pairs out;
    if constexpr (C::kSigned) {
      signed_pairs(bytes.x, out.v);
      signed_pairs(bytes.y, out.v + 2);
    } else {
      unsigned_pairs(bytes.x, C::less(h), out.v);
      unsigned_pairs(bytes.y, C::less(h), out.v + 2);
    }
    return out;
  }
}

// Calls f(Codes<type>()). Any type but plain ones.
template <WeightType kFirst = WeightType::q8_0, typename F>
void with_codes(WeightType type, F&& f) {
  if (type == kFirst) return f(Codes<kFirst>());
  if constexpr (static_cast<int>(kFirst) + 1 < kWeightTypes)
    with_codes<static_cast<WeightType>(static_cast<int>(kFirst) + 1)>(type, f);
}

}  // namespace fovea::cuda::quant
