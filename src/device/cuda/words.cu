#include "device/cuda/words.h"

#include <algorithm>

namespace fovea {
namespace {

constexpr int kThreads = 128;
constexpr int kUnroll = 4;  // reads of a thread in flight: each crosses the bus

struct Copies {
  WordsCopy copy[kWordCopiesMax];
};

__device__ bool on_vectors(const WordsCopy& c) {
  return (reinterpret_cast<uintptr_t>(c.to) | reinterpret_cast<uintptr_t>(c.from) | 4 * uintptr_t{c.words}) % 16 == 0;
}

template <typename T>
__device__ void copy(T* to, const T* from, uint32_t count) {
  for (uint32_t base = blockIdx.y * kUnroll * kThreads + threadIdx.x; base < count; base += gridDim.y * kUnroll * kThreads) {
    T held[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (const uint32_t i = base + u * kThreads; i < count) held[u] = from[i];
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (const uint32_t i = base + u * kThreads; i < count) to[i] = held[u];
    }
  }
}

// Some thread blocks a copy.
__global__ void __launch_bounds__(kThreads) copy_words_kernel(const __grid_constant__ Copies all) {
  const WordsCopy c = all.copy[blockIdx.x];
  if (on_vectors(c)) {
    copy(reinterpret_cast<uint4*>(c.to), reinterpret_cast<const uint4*>(c.from), c.words / 4);
  } else {
    copy(c.to, c.from, c.words);
  }
}

}  // namespace

cudaError_t copy_words(std::span<const WordsCopy> copies, cudaStream_t stream) {
  if (copies.empty()) return cudaSuccess;
  Copies all{};
  std::copy(copies.begin(), copies.end(), all.copy);
  uint32_t most = 0;
  for (const WordsCopy& c : copies) most = std::max(most, c.words);
  constexpr uint32_t kWords = 4 * kUnroll * kThreads, kBlocksMax = 32;
  const dim3 grid(static_cast<unsigned>(copies.size()), std::clamp((most + kWords - 1) / kWords, 1u, kBlocksMax));
  copy_words_kernel<<<grid, kThreads, 0, stream>>>(all);
  return cudaGetLastError();
}

}  // namespace fovea
