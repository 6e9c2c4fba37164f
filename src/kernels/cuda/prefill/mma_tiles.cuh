// Tiles in shared memory and what the tensor cores do with them: mma.sync m16n8k16 fed by ldmatrix.
//
// A thread holds, of each 16 x 8 tile of scores or of the output, columns 2c and 2c + 1 of rows r and r + 8, where
// r = lane / 4 and c = lane % 4 of its warp.
#pragma once

#include "kernels/cuda/prefill/ptx.cuh"

namespace fovea::cuda::prefill {

// Which of the family's kernels. kRowTiles x 16 lanes a warp: with 2, each fragment of K and V that a warp reads serves
// two products, and 128 and 256 lanes reached 311 and 350 TFLOP/s. But a row then had other bits in a warp's second tile than
// in its first (of the size of a rounding of its weights; on an H200, and not in an emulation), so that a prompt's chunks
// showed in its results: until that is understood, no kernel has more than 1.
template <typename Element, int kDim, int kRowTilesPerWarp, int kWarpCount, int kBlocks, bool kConvert>
struct MmaTraits {
  using T = Element;
  static constexpr int kHeadDim = kDim;
  static constexpr int kRowTiles = kRowTilesPerWarp;
  static constexpr int kWarps = kWarpCount;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kLanes = 16 * kRowTiles * kWarps;
  static constexpr int kKeys = 64;  // of a tile
  static constexpr int kBlocksPerSm = kBlocks;
  static constexpr bool kConverted = kConvert;
};

// Rows of kHeadDim 16-bit elements, laid so that 8 rows of one 16-byte chunk fall into 8 different bank groups: chunks
// are permuted within each 128 bytes, or rows padded to an odd number of chunks where they are no multiple of that.
template <int kHeadDim>
struct TileLayout {
  static constexpr int kChunks = kHeadDim / 8;
  static constexpr bool kPermuted = kChunks % 8 == 0;
  static constexpr int kRowBytes = 16 * (kPermuted ? kChunks : kChunks | 1);

  __device__ static __forceinline__ uint32_t at(int row, int chunk) {
    return row * kRowBytes + ((kPermuted ? chunk ^ (row & 7) : chunk) << 4);
  }
};

// scores[., keys of the tile] = Q K^T for the warp's lanes. q, k: addresses of the warp's rows of Q and of the tile of K.
template <typename Traits>
__device__ __forceinline__ void multiply_keys(uint32_t q, uint32_t k, float (&scores)[Traits::kRowTiles][Traits::kKeys / 8][4]) {
  using Layout = TileLayout<Traits::kHeadDim>;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int t = 0; t < Traits::kRowTiles; ++t) {
#pragma unroll
    for (int n = 0; n < Traits::kKeys / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) scores[t][n][e] = 0.0f;
    }
  }
#pragma unroll
  for (int step = 0; step < Traits::kHeadDim / 16; ++step) {
    uint32_t a[Traits::kRowTiles][4];
#pragma unroll
    for (int t = 0; t < Traits::kRowTiles; ++t) {
      load_matrices(a[t], q + t * 16 * Layout::kRowBytes + Layout::at(lane % 16, step * 2 + lane / 16));
    }
#pragma unroll
    for (int n = 0; n < Traits::kKeys / 16; ++n) {
      uint32_t b[4];  // 16 keys x 16 dims
      load_matrices(b, k + n * 16 * Layout::kRowBytes + Layout::at(lane / 16 * 8 + lane % 8, step * 2 + lane / 8 % 2));
#pragma unroll
      for (int t = 0; t < Traits::kRowTiles; ++t) {
        multiply_add<typename Traits::T>(scores[t][2 * n], a[t], b[0], b[1]);
        multiply_add<typename Traits::T>(scores[t][2 * n + 1], a[t], b[2], b[3]);
      }
    }
  }
}

// out += P V over 16 keys. weights: of the 16 keys, rounded, as multiply_add takes them; v: address of their rows.
template <typename Traits>
__device__ __forceinline__ void multiply_values(const uint32_t (&weights)[Traits::kRowTiles][4], uint32_t v,
                                                float (&out)[Traits::kRowTiles][Traits::kHeadDim / 8][4]) {
  using Layout = TileLayout<Traits::kHeadDim>;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < Traits::kHeadDim / 16; ++n) {
    uint32_t b[4];  // 16 keys x 16 dims
    load_matrices_transposed(b, v + Layout::at(lane / 8 % 2 * 8 + lane % 8, n * 2 + lane / 16));
#pragma unroll
    for (int t = 0; t < Traits::kRowTiles; ++t) {
      multiply_add<typename Traits::T>(out[t][2 * n], weights[t], b[0], b[1]);
      multiply_add<typename Traits::T>(out[t][2 * n + 1], weights[t], b[2], b[3]);
    }
  }
}

}  // namespace fovea::cuda::prefill
