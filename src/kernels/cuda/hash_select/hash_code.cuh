// The hash code of one head vector, by one warp (HashCodec): lane l holds elements l, l + 32, ... The
// butterflies of the Walsh-Hadamard transform run in the order of the definition, over lanes by shuffles,
// then over registers: every sum rounds as the reference's does, so codes are equal bit for bit.
#pragma once

#include <fovea/kernels/cache.h>

#include <cuda_bf16.h>

#include <cstdint>

namespace fovea::cuda::hash {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;
inline constexpr int kRounds = 3;  // (signs, Walsh-Hadamard) of one rotation

// kRegs: n / 32.
template <int kRegs>
__device__ inline void walsh_hadamard(float (&x)[kRegs]) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int h = 1; h < kWarp; h *= 2) {
#pragma unroll
    for (int r = 0; r < kRegs; ++r) {
      const float other = __shfl_xor_sync(kAllLanes, x[r], h);
      x[r] = (lane & h) != 0 ? other - x[r] : x[r] + other;
    }
  }
#pragma unroll
  for (int h = 1; h < kRegs; h *= 2) {
#pragma unroll
    for (int r = 0; r < kRegs; ++r) {
      if ((r & h) != 0) continue;
      const float a = x[r], b = x[r + h];
      x[r] = a + b;
      x[r + h] = a - b;
    }
  }
}

// Which of a lane's elements change signs in the rounds of one rotation, a bit each. No kernel writes signs: they can be read ahead
// of everything.
template <int kRegs>
struct Flips {
  uint32_t bits = 0;  // of element r in a round: round * kRegs + r

  Flips() = default;
  __device__ Flips(const HashCodec& codec, int rotation) {
    static_assert(kRounds * kRegs <= 32);
    const auto* signs = reinterpret_cast<const uint32_t*>(codec.signs) + rotation * kRounds * codec.n + threadIdx.x % kWarp;
#pragma unroll
    for (int i = 0; i < kRounds * kRegs; ++i) bits |= __ldg(signs + i / kRegs * codec.n + i % kRegs * kWarp) >> 31 << i;
  }
};

// y <- the rotation of x. x: zero beyond head_dim.
template <int kRegs>
__device__ inline void rotate(const Flips<kRegs>& flips, const float (&x)[kRegs], float (&y)[kRegs]) {
  uint32_t bits = flips.bits;
#pragma unroll
  for (int r = 0; r < kRegs; ++r) y[r] = x[r];
#pragma unroll 1
  for (int round = 0; round < kRounds; ++round, bits >>= kRegs) {
#pragma unroll
    for (int r = 0; r < kRegs; ++r) y[r] = __uint_as_float(__float_as_uint(y[r]) ^ (bits << (31 - r) & 0x80000000u));
    walsh_hadamard(y);
  }
}

// HashCodec::length_factor of a key: partial sum i % 32 is that of lane i % 32.
struct KeyLength {
  float squares = 0.0f, sum = 0.0f;

  __device__ void add(float y) {
    squares = __fadd_rn(squares, __fmul_rn(y, y));
    sum = __fadd_rn(sum, fabsf(y));
  }
  __device__ uint16_t factor(float scale) const {
    float a = squares, b = sum;
    for (int half = kWarp / 2; half > 0; half /= 2) {
      a = __fadd_rn(a, __shfl_xor_sync(kAllLanes, a, half));
      b = __fadd_rn(b, __shfl_xor_sync(kAllLanes, b, half));
    }
    const float f = __fmul_rn(__fdiv_rn(a, b), scale);
    return f < 0x1.ffp127f ? __bfloat16_as_ushort(__float2bfloat16_rn(f)) : 0;
  }
};

// Lane w returns word w of the code, for w < bits / 64. x: zero beyond head_dim. `flips`: of rotation 0. `length` is measured where
// there are factors.
template <int kRegs>
__device__ inline uint64_t encode(const HashCodec& codec, Flips<kRegs> flips, const float (&x)[kRegs],
                                  KeyLength* length = nullptr) {
  const int lane = threadIdx.x % kWarp;
  uint64_t word = 0;
#pragma unroll 1
  for (int rotation = 0; rotation * codec.n < codec.bits; ++rotation) {
    if (rotation > 0) flips = Flips<kRegs>(codec, rotation);
    float y[kRegs];
    rotate(flips, x, y);
#pragma unroll
    for (int r = 0; r < kRegs; r += 2) {
      const int first = rotation * codec.n + kWarp * r;
      const uint64_t low = __ballot_sync(kAllLanes, y[r] > 0.0f), high = __ballot_sync(kAllLanes, y[r + 1] > 0.0f);
      if (lane == first / 64) word = low | high << 32;
      if (length == nullptr || first >= codec.bits) continue;
      length->add(y[r]);
      length->add(y[r + 1]);
    }
  }
  return word;
}
template <int kRegs>
__device__ inline uint64_t encode(const HashCodec& codec, const float (&x)[kRegs], KeyLength* length = nullptr) {
  return encode(codec, Flips<kRegs>(codec, 0), x, length);
}

// A query as products of bits compare it with keys: element i is q4[i], an integer in [-7, 7], in four slices of one bit each, those of
// its two's complement: q4 = s0 + 2 s1 + 4 s2 - 8 s3. The signed sum of a key is 2 G minus the sum of q4, G the slices' sum over the
// bits that the key has. Of symmetric codes q4 is a sign.
struct QuerySlices {
  static constexpr int kSlices = 4;
  using Bits = uint32_t[kSlices];  // of 32 elements, by slice

  // All rotations that a code of so many words needs.
  template <int kWords, int kRegs>
  struct Rotations {
    static constexpr int kValues = 2 * kWords, kCount = (kValues + kRegs - 1) / kRegs;  // elements of a lane
    Flips<kRegs> of[kCount];
    __device__ explicit Rotations(const HashCodec& codec) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) of[i] = Flips<kRegs>(codec, i);
    }
  };

  // x / divisor as __fdiv_rn has it, for quotients of at most some units, without its branches. Those that are lost for being tiny
  // round to 0 anyway.
  struct Quotient {
    float divisor, reciprocal, scale;
    __device__ explicit Quotient(float d) : scale(d < 0x1p-60f ? 0x1p64f : d > 0x1p60f ? 0x1p-64f : 1.0f) {
      divisor = d * scale;
      asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(divisor));
      reciprocal = __fmaf_rn(__fmaf_rn(reciprocal, -divisor, 1.0f), reciprocal, reciprocal);
    }
    __device__ float of(float x) const {
      x *= scale;
      const float near = __fmul_rn(x, reciprocal);
      return __fmaf_rn(reciprocal, __fmaf_rn(near, -divisor, x), near);
    }
  };

  // A query by all of them, in one warp.
  template <int kWords, int kRegs>
  struct Rotated {
    using All = Rotations<kWords, kRegs>;
    const HashCodec& codec;
    float y[All::kCount][kRegs];
    float step;  // of q4
    bool measured;

    __device__ Rotated(const HashCodec& c, const All& rotations, const float (&x)[kRegs]) : codec(c) {
      float most = 0.0f;
#pragma unroll
      for (int i = 0; i < All::kCount; ++i) rotate(rotations.of[i], x, y[i]);
#pragma unroll
      for (int v = 0; v < All::kValues; ++v) most = fmaxf(most, fabsf(y[v / kRegs][v % kRegs]));  // a NaN is none
      most = __uint_as_float(__reduce_max_sync(kAllLanes, __float_as_uint(most)));
      step = __fdiv_rn(most, 7.0f);
      measured = step > 0.0f && step <= 3.402823466e38f;
    }
    // Of q4, in the rotation's scale; 0 where nothing was measured.
    __device__ float unit() const { return measured ? __fmul_rn(step, codec.scale) : 0.0f; }
    // `keep(half, bits)` takes the bits of elements [32 half, 32 half + 32), half a word. Returns the sum of q4.
    template <typename Keep>
    __device__ int32_t slice(const Keep& keep) const {
      const Quotient by_step(measured ? step : 1.0f);
      int32_t sum = 0;
#pragma unroll
      for (int v = 0; v < All::kValues; ++v) {
        const float element = y[v / kRegs][v % kRegs];
        int q4 = element > 0.0f ? 1 : -1;
        if (codec.asymmetric) q4 = measured ? max(-7, min(7, __float2int_rn(by_step.of(element)))) : 0;
        Bits bits;
#pragma unroll
        for (int s = 0; s < kSlices; ++s) bits[s] = __ballot_sync(kAllLanes, (q4 >> s & 1) != 0);
        keep(v, bits);
        sum += q4;
      }
      return __reduce_add_sync(kAllLanes, sum);
    }
  };

  // |q|: squares are exact in float64, partial sum i % 32 is that of lane i % 32.
  template <int kRegs>
  __device__ static double length_of(const float (&x)[kRegs]) {
    double squares = 0.0;
#pragma unroll
    for (int r = 0; r < kRegs; ++r) squares += static_cast<double>(x[r]) * x[r];
    for (int half = kWarp / 2; half > 0; half /= 2) squares += __shfl_xor_sync(kAllLanes, squares, half);
    return sqrt(squares);
  }
};

// The better a score, the lower; the two zeros are one. Never 0xffffffff.
__device__ inline uint32_t rank_of(float score) {
  const int32_t bits = __float_as_int(__fadd_rn(score, 0.0f));
  return ~static_cast<uint32_t>(bits < 0 ? bits ^ 0x7fffffff : bits) ^ 0x80000000u;
}

}  // namespace fovea::cuda::hash
