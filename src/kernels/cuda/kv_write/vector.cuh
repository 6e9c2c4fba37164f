// A vector of a token in the registers of a warp: lane l holds elements l, l + 32, ..., the order in which hash codes are
// computed. Products and sums are rounded one by one as the reference rounds them (no fused multiply-add), so that keys, and
// with them their codes, come out the same bit for bit.
#pragma once

#include <cstdint>

#include "kernels/cuda/hash_select/hash_code.cuh"

namespace fovea::cuda::kv_writing {

using hash::kAllLanes;
using hash::kWarp;

// The rotation of a token's first `dim` elements.
struct Rope {
  int32_t dim = 0;
  bool interleaved = false;
  const float *cos = nullptr, *sin = nullptr;  // [dim / 2]
};

// What turns a lane's elements: read at once and before they are needed.
template <int kRegs>
struct Angles {
  float cos[kRegs], sin[kRegs];

  Angles() = default;
  __device__ explicit Angles(const Rope& p) {
    const int half = p.dim / 2;
#pragma unroll
    for (int r = 0; r < kRegs; ++r) {
      const int e = static_cast<int>(threadIdx.x) % kWarp + kWarp * r;
      if (e >= p.dim) continue;
      const int pair = p.interleaved ? e / 2 : e < half ? e : e - half;
      cos[r] = p.cos[pair], sin[r] = p.sin[pair];
    }
  }
};

template <int kRegs>
struct Vector {
  float x[kRegs];  // element lane + 32 * r; 0 beyond head_dim

  __device__ static int element(int r) { return static_cast<int>(threadIdx.x) % kWarp + kWarp * r; }

  __device__ void load(const float* from, int d) {
#pragma unroll
    for (int r = 0; r < kRegs; ++r) x[r] = element(r) < d ? from[element(r)] : 0.0f;
  }
  __device__ void save(float* to, int d) const {
#pragma unroll
    for (int r = 0; r < kRegs; ++r) {
      if (element(r) < d) to[element(r)] = x[r];
    }
  }

  // Squares are summed in float64, where each is exact: the order of the sum does not show in the float32 result.
  __device__ void norm(const float* weight, int d, float eps) {
    double sum = 0.0;
#pragma unroll
    for (int r = 0; r < kRegs; ++r) sum += static_cast<double>(x[r]) * x[r];
    for (int step = 1; step < kWarp; step *= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
    const auto inverse = static_cast<float>(1.0 / sqrt(sum / d + eps));
#pragma unroll
    for (int r = 0; r < kRegs; ++r) {
      if (element(r) < d) x[r] = __fmul_rn(__fmul_rn(x[r], inverse), weight[element(r)]);
    }
  }

  // `row`: shared memory of this warp, 32 * kRegs floats, in which each element finds its partner.
  __device__ void rope(const Rope& p, float* row) { rope(p, Angles<kRegs>(p), row); }
  __device__ void rope(const Rope& p, const Angles<kRegs>& angles, float* row) {
    const int half = p.dim / 2;
#pragma unroll
    for (int r = 0; r < kRegs; ++r) row[element(r)] = x[r];
    __syncwarp();
#pragma unroll
    for (int r = 0; r < kRegs; ++r) {
      const int e = element(r);
      if (e >= p.dim) continue;
      const bool first = p.interleaved ? e % 2 == 0 : e < half;
      const float other = row[p.interleaved ? e ^ 1 : first ? e + half : e - half];
      const float turned = __fmul_rn(other, angles.sin[r]), kept = __fmul_rn(x[r], angles.cos[r]);
      x[r] = first ? __fsub_rn(kept, turned) : __fadd_rn(kept, turned);
    }
    __syncwarp();
  }
};

}  // namespace fovea::cuda::kv_writing
