// A product of two matrices whose rows are long, on tensor cores by `mma`: steps of the depth come as panels of 128 rows and of 64.
//
// 8 warps of 32 rows x 32 columns. Of every tile of 16 rows x 8 columns a thread holds columns 2c and 2c + 1 of the rows r and r +
// 8, where r = thread / 4 and c = thread % 4 of its warp.
#pragma once

#include "kernels/cuda/xattention/key_chunks.cuh"

namespace fovea::cuda::xattention {

struct MmaProduct {
  static constexpr int kRows = 128, kColumns = 64, kStages = 3, kThreads = 256;
  static constexpr int kParts = 2, kTiles = 4;
  using Sums = float[kParts][kTiles][4];

  struct Stage {
    Panel<kRows> q;
    Panel<kColumns> k;
  };

  __device__ static int first_row() { return threadIdx.x / 64 * 32; }
  __device__ static int first_column() { return threadIdx.x / 32 % 2 * 32; }

  template <typename T>
  __device__ static __forceinline__ void multiply(const Stage& stage, Sums& acc) {
    const int thread = threadIdx.x % 32;
    const uint32_t q = prefill::shared_address(stage.q.bytes), k = prefill::shared_address(stage.k.bytes);
#pragma unroll
    for (int step = 0; step < kStep / 16; ++step) {
      uint32_t a[kParts][4];
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        prefill::load_matrices(a[part], q + Panel<kRows>::at(first_row() + part * 16 + thread % 16, step * 2 + thread / 16));
      }
#pragma unroll
      for (int pair = 0; pair < kTiles / 2; ++pair) {
        uint32_t b[4];  // 16 columns x 16 elements
        const int row = first_column() + pair * 16 + thread / 16 * 8 + thread % 8;
        prefill::load_matrices(b, k + Panel<kColumns>::at(row, step * 2 + thread / 8 % 2));
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          prefill::multiply_add<T>(acc[part][2 * pair], a[part], b[0], b[1]);
          prefill::multiply_add<T>(acc[part][2 * pair + 1], a[part], b[2], b[3]);
        }
      }
    }
  }

  // Where 16 bytes of a row lie.
  __device__ static __forceinline__ uint32_t q_chunk(const Stage& s, int row, int chunk) {
    return prefill::shared_address(s.q.bytes) + Panel<kRows>::at(row, chunk);
  }
  __device__ static __forceinline__ uint32_t k_chunk(const Stage& s, int row, int chunk) {
    return prefill::shared_address(s.k.bytes) + Panel<kColumns>::at(row, chunk);
  }

  // Calls visit(row, column, sum) for what a thread holds.
  template <typename Visit>
  __device__ static __forceinline__ void each_sum(const Sums& acc, Visit visit) {
    const int row = first_row() + threadIdx.x % 32 / 4, column = first_column() + threadIdx.x % 4 * 2;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int e = 0; e < 4; ++e) visit(row + part * 16 + e / 2 * 8, column + tile * 8 + e % 2, acc[part][tile][e]);
      }
    }
  }
};

}  // namespace fovea::cuda::xattention
