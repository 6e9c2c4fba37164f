// The hash code of one head vector, by one warp (HashCodec): lane l holds elements l, l + 32, ... The
// butterflies of the Walsh-Hadamard transform run in the order of the definition, over lanes by shuffles,
// then over registers: every sum rounds as the reference's does, so codes are equal bit for bit.
#pragma once

#include <cstdint>

#include "kernels/ops/kv_write.h"

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

// Lane w returns word w of the code, for w < bits / 64. x: zero beyond head_dim.
template <int kRegs>
__device__ inline uint64_t encode(const HashCodec& codec, const float (&x)[kRegs]) {
  const int lane = threadIdx.x % kWarp;
  uint64_t word = 0;
  for (int rotation = 0; rotation * codec.n < codec.bits; ++rotation) {
    float y[kRegs];
#pragma unroll
    for (int r = 0; r < kRegs; ++r) y[r] = x[r];
    for (int round = 0; round < kRounds; ++round) {
      const float* signs = codec.signs + (rotation * kRounds + round) * codec.n;
#pragma unroll
      for (int r = 0; r < kRegs; ++r) y[r] *= signs[lane + kWarp * r];
      walsh_hadamard(y);
    }
#pragma unroll
    for (int r = 0; r < kRegs; r += 2) {
      const uint64_t low = __ballot_sync(kAllLanes, y[r] > 0.0f), high = __ballot_sync(kAllLanes, y[r + 1] > 0.0f);
      if (lane == (rotation * codec.n + kWarp * r) / 64) word = low | high << 32;
    }
  }
  return word;
}

}  // namespace fovea::cuda::hash
