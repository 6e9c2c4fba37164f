// Weights that are read soon, fetched to the L2 cache (Fetch).
#pragma once

#include <cstdint>

#include "kernels/cuda/hash_select/config.h"
#include "kernels/cuda/prefill/hopper.cuh"

namespace fovea::cuda::hash {

// This thread's share, where thread block number `block` of `blocks` calls it with all of its threads.
__device__ inline void fetch_soon(const Fetch (&all)[2], uint32_t block, uint32_t blocks) {
#if __CUDA_ARCH__ >= 900
  constexpr uint32_t kOfPiece = kFetchPiece / kFetchAtOnce;
#pragma unroll 1
  for (const Fetch& fetch : all) {
#pragma unroll 1
    for (uint32_t at = block * blockDim.x + threadIdx.x; at < fetch.pieces * kOfPiece; at += blocks * blockDim.x) {
      prefill::prefetch_bytes(fetch.from + at / kOfPiece * fetch.apart + at % kOfPiece * kFetchAtOnce, kFetchAtOnce);
    }
  }
#endif
}

}  // namespace fovea::cuda::hash
