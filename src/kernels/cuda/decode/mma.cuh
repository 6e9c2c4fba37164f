// The PTX that decode attention on tensor cores needs, and what of it depends on the element of the cache.
//
// m16n8k16: D[16, 8] += A[16, 16] B[16, 8]. With g = lane / 4 and t = lane % 4, a lane holds of A the pairs
// (row g, columns 2t, 2t+1), (g + 8, same), (g, 2t+8, 2t+9), (g + 8, same); of B the pairs (rows 2t, 2t+1,
// column g), (rows 2t+8, 2t+9, column g); of D (row g, columns 2t, 2t+1), (row g + 8, same).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace fovea::cuda::decode {

// What the tensor cores multiply: pairs of 16-bit floats.
struct MmaBf16 {
  __device__ static uint32_t pack(float low, float high) {
    const __nv_bfloat162 x = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&x);
  }
  __device__ static float2 unpack(uint32_t x) { return {__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u)}; }
  __device__ static void mma(float (&d)[4], uint4 a, uint2 b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y));
  }
};

struct MmaF16 {
  __device__ static uint32_t pack(float low, float high) {
    const __half2 x = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&x);
  }
  __device__ static float2 unpack(uint32_t x) { return __half22float2(*reinterpret_cast<const __half2*>(&x)); }
  __device__ static void mma(float (&d)[4], uint4 a, uint2 b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y));
  }
};

// x as a sum of two 16-bit floats, of two values at once: twice the significant bits, so that a product with
// what the cache holds is almost as exact as in float32.
template <typename Mma>
__device__ inline void split(float low, float high, uint32_t& large, uint32_t& small) {
  large = Mma::pack(low, high);
  const float2 rounded = Mma::unpack(large);
  small = Mma::pack(low - rounded.x, high - rounded.y);
}

// Elements of the cache. Eight neighbours are one load of a lane, and four registers of an mma operand.
struct Bf16Kv : MmaBf16 {
  using Stored = uint16_t;
  using Eight = uint4;
  __device__ static void widen(const Eight& x, uint32_t (&r)[4]) { r[0] = x.x, r[1] = x.y, r[2] = x.z, r[3] = x.w; }
};
struct F16Kv : MmaF16 {
  using Stored = uint16_t;
  using Eight = uint4;
  __device__ static void widen(const Eight& x, uint32_t (&r)[4]) { r[0] = x.x, r[1] = x.y, r[2] = x.z, r[3] = x.w; }
};
template <__nv_fp8_interpretation_t kKind>
struct Fp8Kv : MmaF16 {  // every fp8 value is an f16 value
  using Stored = uint8_t;
  using Eight = uint2;
  __device__ static uint32_t two(uint32_t x) {
    const __half2_raw h = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(x), kKind);
    return static_cast<uint32_t>(h.y) << 16 | h.x;
  }
  __device__ static void widen(const Eight& x, uint32_t (&r)[4]) {
    r[0] = two(x.x & 0xffffu), r[1] = two(x.x >> 16), r[2] = two(x.y & 0xffffu), r[3] = two(x.y >> 16);
  }
};

}  // namespace fovea::cuda::decode
