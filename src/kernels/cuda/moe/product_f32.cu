// Grouped products in float32: a block computes kTileRows rows of one expert by kCols outputs, a thread 4 x 4 of them.
#include <cuda_runtime.h>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/moe/args.h"
#include "kernels/cuda/moe/tile.cuh"
#include "kernels/cuda/vec.cuh"

namespace fovea::cuda::moe {
namespace {

constexpr int kCols = 64;
constexpr int kAcross = kCols / 4, kDown = kTileRows / 4, kThreads = kAcross * kDown;
constexpr int kDepth = 16;  // of the inner dimension in shared memory at a time
constexpr int kPad = 4;
using Sums = float[4][4];

struct Shared {
  alignas(16) float x[kDepth][kTileRows + kPad];
  alignas(16) float w[kDepth][kCols + kPad];
  int32_t places[kTileRows];
};

template <typename T>
__device__ void multiply_tile(const ProductArgs& a, const T* w, int first_col, int rows, Shared& s, Sums& sums) {
  const int across = threadIdx.x % kAcross, down = threadIdx.x / kAcross;
  const auto* x = static_cast<const float*>(a.x);
  for (int first = 0; first < a.depth; first += kDepth) {
    __syncthreads();
    for (int i = threadIdx.x; i < kTileRows * kDepth; i += kThreads) {
      const int row = i / kDepth, k = i % kDepth, at = first + k;
      s.x[k][row] = row < rows && at < a.depth ? x[static_cast<int64_t>(s.places[row] / a.places_per_row) * a.depth + at] : 0.0f;
      const int col = first_col + row;
      s.w[k][row] = col < a.cols && at < a.depth ? to_f32(w[static_cast<int64_t>(col) * a.depth + at]) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      const float4 u = *reinterpret_cast<const float4*>(&s.x[k][4 * down]),
                   v = *reinterpret_cast<const float4*>(&s.w[k][4 * across]);
      const float left[4] = {u.x, u.y, u.z, u.w}, right[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[i][j] = fmaf(left[i], right[j], sums[i][j]);
      }
    }
  }
}
static_assert(kCols == kTileRows, "the loop that fills both tiles");

__device__ void multiply_tile(const ProductArgs& a, const MatrixName& w, int first_col, int rows, Shared& s, Sums& sums) {
  switch (w.type()) {
    case WeightType::f32:
      return multiply_tile(a, static_cast<const float*>(w.data()), first_col, rows, s, sums);
    case WeightType::f16:
      return multiply_tile(a, static_cast<const __half*>(w.data()), first_col, rows, s, sums);
    case WeightType::bf16:
      return multiply_tile(a, static_cast<const __nv_bfloat16*>(w.data()), first_col, rows, s, sums);
  }
}

// Grid: (tiles of outputs, tiles of places).
__global__ void __launch_bounds__(kThreads) multiply(const __grid_constant__ ProductArgs a) {
  __shared__ Shared s;
  const int tile = static_cast<int>(blockIdx.y), first_col = static_cast<int>(blockIdx.x) * kCols;
  if (tile >= *a.groups.tiles) return;
  const int expert = a.groups.expert[tile], rows = load_places(a.groups, tile, s.places);
  Sums sums = {}, ups = {};
  multiply_tile(a, a.matrix[expert], first_col, rows, s, sums);
  if (a.gated) multiply_tile(a, a.up[expert], first_col, rows, s, ups);
  const int across = threadIdx.x % kAcross, down = threadIdx.x / kAcross;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = 4 * down + i;
    if (row >= rows) break;
    float* out = static_cast<float*>(a.out) + static_cast<int64_t>(s.places[row]) * a.cols;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int col = first_col + 4 * across + j;
      if (col < a.cols) out[col] = a.gated ? gated(sums[i][j], ups[i][j]) : sums[i][j];
    }
  }
}

}  // namespace

void multiply_f32(const ProductArgs& a, int32_t places, int32_t experts, cudaStream_t stream) {
  const dim3 grid(ceil_div(a.cols, kCols), tiles_at_most(places, experts));
  multiply<<<grid, dim3(kThreads), 0, stream>>>(a);
  check_launch("products of experts");
}

}  // namespace fovea::cuda::moe
