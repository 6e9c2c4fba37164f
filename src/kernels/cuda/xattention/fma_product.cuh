// A product of two matrices whose rows are long, in float32 on the ordinary cores: steps of the depth come as 64 rows each.
//
// 16 x 16 threads; thread (y, x) holds rows 4y..4y+3 with columns x, x + 16, x + 32, x + 48.
#pragma once

#include "kernels/cuda/xattention/cells.cuh"

namespace fovea::cuda::xattention {

struct FmaProduct {
  static constexpr int kRows = 64, kColumns = 64, kStages = 2, kThreads = 256;
  static constexpr int kPitch = kStep + 4;  // floats: 16-byte reads down a column fall into different banks
  using Sums = float[4][4];

  struct Stage {
    alignas(16) float q[kRows][kPitch];
    alignas(16) float k[kColumns][kPitch];
  };

  template <typename T>
  __device__ static __forceinline__ void multiply(const Stage& s, Sums& acc) {
    const int y = threadIdx.x / 16, x = threadIdx.x % 16;
#pragma unroll 4
    for (int e = 0; e < kStep; e += 4) {
      float4 q[4], k[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        q[i] = *reinterpret_cast<const float4*>(&s.q[4 * y + i][e]);
        k[i] = *reinterpret_cast<const float4*>(&s.k[x + 16 * i][e]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float dot = fmaf(q[i].x, k[j].x, acc[i][j]);
          dot = fmaf(q[i].y, k[j].y, dot);
          dot = fmaf(q[i].z, k[j].z, dot);
          acc[i][j] = fmaf(q[i].w, k[j].w, dot);
        }
      }
    }
  }

  // Where 16 bytes of a row lie.
  __device__ static __forceinline__ uint32_t q_chunk(const Stage& s, int row, int chunk) {
    return prefill::shared_address(&s.q[row][chunk * 4]);
  }
  __device__ static __forceinline__ uint32_t k_chunk(const Stage& s, int row, int chunk) {
    return prefill::shared_address(&s.k[row][chunk * 4]);
  }

  // Calls visit(row, column, sum) for what a thread holds.
  template <typename Visit>
  __device__ static __forceinline__ void each_sum(const Sums& acc, Visit visit) {
    const int y = threadIdx.x / 16, x = threadIdx.x % 16;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) visit(4 * y + i, x + 16 * j, acc[i][j]);
    }
  }
};

}  // namespace fovea::cuda::xattention
