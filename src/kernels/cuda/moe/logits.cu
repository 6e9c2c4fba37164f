// The router's product in float32. A warp takes some rows and experts: its lanes share the inner dimension, each in ascending order,
// and then add up in pairs, so that a row's bits depend neither on the others nor on how many a warp takes.
#include <cuda_runtime.h>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/moe/args.h"
#include "kernels/cuda/vec.cuh"

namespace fovea::cuda::moe {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;

// kVec elements from p on: neighbours in memory, aligned to as much as they take.
template <typename T, int kVec>
__device__ void load(const T* p, float (&out)[kVec]) {
  struct alignas(kVec * sizeof(T)) Piece {
    T x[kVec];
  };
  const Piece piece = *reinterpret_cast<const Piece*>(p);
#pragma unroll
  for (int i = 0; i < kVec; ++i) out[i] = to_f32(piece.x[i]);
}

// Grid: (tiles of experts, tiles of rows).
template <typename T, int kVec, int kRows, int kExperts>
__global__ void __launch_bounds__(kThreads) logits_kernel(const __grid_constant__ MoeRouteParams p, float* logits) {
  const int lane = threadIdx.x % 32, first_row = static_cast<int>(blockIdx.y) * kRows;
  const int first = (static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32) * kExperts;
  if (first >= p.experts) return;
  const auto* gate = static_cast<const T*>(p.gate.data);
  float sums[kRows][kExperts] = {};
#pragma unroll 4
  for (int at = lane * kVec; at < p.hidden; at += 32 * kVec) {
    float w[kExperts][kVec];
#pragma unroll
    for (int e = 0; e < kExperts; ++e)
      load<T, kVec>(gate + static_cast<int64_t>(min(first + e, p.experts - 1)) * p.hidden + at, w[e]);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float x[kVec];
      load<float, kVec>(p.x + static_cast<int64_t>(min(first_row + r, p.rows - 1)) * p.hidden + at, x);
#pragma unroll
      for (int e = 0; e < kExperts; ++e) {
#pragma unroll
        for (int i = 0; i < kVec; ++i) sums[r][e] = fmaf(x[i], w[e][i], sums[r][e]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int e = 0; e < kExperts; ++e) {
      const float sum = warp_sum(sums[r][e]);
      if (lane == 0 && first_row + r < p.rows && first + e < p.experts)
        logits[static_cast<int64_t>(first_row + r) * p.experts + first + e] = sum;
    }
  }
}

template <typename T, int kVec, int kRows, int kExperts>
void launch_logits(const MoeRouteParams& p, float* logits, cudaStream_t stream) {
  const dim3 grid(ceil_div(p.experts, kWarps * kExperts), ceil_div(p.rows, kRows));
  logits_kernel<T, kVec, kRows, kExperts><<<grid, dim3(kThreads), 0, stream>>>(p, logits);
  check_launch("logits of the expert router");
}

}  // namespace

void route_logits(const MoeRouteParams& p, float* logits, cudaStream_t stream) {
  constexpr int kVec = 4;
  const bool on_vectors = p.hidden % kVec == 0 && aligned16(p.x) && aligned16(p.gate.data);
  with_float_type(p.gate.dtype(), [&](auto type) {
    using T = decltype(type);
    if (!on_vectors) return launch_logits<T, 1, 1, 1>(p, logits, stream);
    if (p.rows <= 32) return launch_logits<T, kVec, 1, 1>(p, logits, stream);
    launch_logits<T, kVec, 8, 4>(p, logits, stream);
  });
}

}  // namespace fovea::cuda::moe
