// A block computes a tile of rows by kCols outputs of one head, a thread some rows of four outputs. Sums are chains of fused
// multiply-adds in ascending order of the inner dimension, whatever the tile.
#include <cuda_runtime.h>

#include "base/check.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/mla/mla.h"
#include "kernels/cuda/mla/product.h"
#include "kernels/cuda/vec.cuh"

namespace fovea::cuda {
namespace mla {
namespace {

constexpr int kThreads = 256;
constexpr int kCols = 64, kAcross = kCols / 4;
constexpr int kDown = kThreads / kAcross;
constexpr int kDepth = 16;  // of the inner dimension in shared memory at a time
constexpr int kPad = 4;

// Element (k, c) of a head's part: with kAcrossRows a column is a row of it, else an element of its rows.
template <typename T, bool kAcrossRows>
__device__ float weight_at(const Product& p, const T* w, int k, int c) {
  return to_f32(kAcrossRows ? w[static_cast<int64_t>(c) * p.latent + k] : w[static_cast<int64_t>(k) * p.latent + c]);
}

template <typename T, bool kAcrossRows, int kEach>
__global__ void __launch_bounds__(kThreads) multiply(const __grid_constant__ Product p) {
  constexpr int kRows = kEach * kDown;
  __shared__ alignas(16) float x_tile[kDepth][kRows + kPad];
  __shared__ alignas(16) float w_tile[kDepth][kCols + kPad];
  const int head = static_cast<int>(blockIdx.z), first_row = static_cast<int>(blockIdx.y) * kRows,
            first_col = static_cast<int>(blockIdx.x) * kCols;
  const int across = threadIdx.x % kAcross, down = threadIdx.x / kAcross;
  const T* w = static_cast<const T*>(p.w) + (static_cast<int64_t>(head) * p.w_rows + p.first_row) * p.latent;
  const auto x_at = [&](int row) { return p.x + (static_cast<int64_t>(first_row + row) * p.heads + head) * p.x_width; };
  const auto out_at = [&](int row) { return p.out + (static_cast<int64_t>(first_row + row) * p.heads + head) * p.out_width; };
  float sum[kEach][4] = {};
  for (int first = 0; first < p.depth; first += kDepth) {
    __syncthreads();
    for (int i = threadIdx.x; i < kRows * kDepth; i += kThreads) {
      const int row = i / kDepth, k = i % kDepth;
      x_tile[k][row] = first_row + row < p.rows && first + k < p.depth ? x_at(row)[first + k] : 0.0f;
    }
    for (int i = threadIdx.x; i < kCols * kDepth; i += kThreads) {
      const int col = kAcrossRows ? i / kDepth : i % kCols, k = kAcrossRows ? i % kDepth : i / kCols;
      const bool there = first_col + col < p.cols && first + k < p.depth;
      w_tile[k][col] = there ? weight_at<T, kAcrossRows>(p, w, first + k, first_col + col) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      const float4 b = *reinterpret_cast<const float4*>(&w_tile[k][4 * across]);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const float a = x_tile[k][down + i * kDown];
        sum[i][0] = fmaf(a, b.x, sum[i][0]);
        sum[i][1] = fmaf(a, b.y, sum[i][1]);
        sum[i][2] = fmaf(a, b.z, sum[i][2]);
        sum[i][3] = fmaf(a, b.w, sum[i][3]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int row = down + i * kDown;
    if (first_row + row >= p.rows) break;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int col = first_col + 4 * across + c;
      if (col < p.cols) out_at(row)[col] = sum[i][c];
    }
  }
  if (blockIdx.x > 0) return;
  for (int i = threadIdx.x; i < kRows * p.copied; i += kThreads) {
    const int row = i / p.copied, e = i % p.copied;
    if (first_row + row < p.rows) out_at(row)[p.cols + e] = x_at(row)[p.depth + e];
  }
}

}  // namespace

void multiply_f32(const Product& p, DType dtype, cudaStream_t stream) {
  const bool few = p.rows <= kDown;
  const dim3 grid(ceil_div(p.cols, kCols), ceil_div(p.rows, few ? kDown : 4 * kDown), p.heads);
  with_float_type(dtype, [&](auto type) {
    using T = decltype(type);
    auto* kernel = p.across_rows ? few ? &multiply<T, true, 1> : &multiply<T, true, 4>
                   : few ? &multiply<T, false, 1>
                                 : &multiply<T, false, 4>;
    kernel<<<grid, dim3(kThreads), 0, stream>>>(p);
  });
  check_launch("mla product");
}

}  // namespace mla

namespace {

void multiply(const mla::Product& p, DType dtype, Numerics numerics, cudaStream_t stream) {
  if (p.rows == 0 || p.heads == 0) return;
  if (numerics == Numerics::bf16 && dtype == DType::bf16 && mla::on_vectors(p)) {
    mla::multiply_bf16(p, stream);
  } else {
    mla::multiply_f32(p, dtype, stream);
  }
}

}  // namespace

void mla_absorb(const MlaAbsorbParams& p, Numerics numerics, cudaStream_t stream) {
  const MlaShape& s = p.shape;
  multiply({.x = p.q,
            .w = p.kv_b.data,
            .out = p.out,
            .rows = p.rows,
            .heads = p.num_heads,
            .depth = s.nope,
            .cols = s.latent,
            .x_width = s.nope + s.rope,
            .out_width = s.latent + s.rope,
            .w_rows = s.nope + s.v,
            .first_row = 0,
            .latent = s.latent,
            .across_rows = false,
            .copied = s.rope},
           p.kv_b.dtype(), numerics, stream);
}

void mla_unabsorb(const MlaUnabsorbParams& p, Numerics numerics, cudaStream_t stream) {
  const MlaShape& s = p.shape;
  multiply({.x = p.x,
            .w = p.kv_b.data,
            .out = p.out,
            .rows = p.rows,
            .heads = p.num_heads,
            .depth = s.latent,
            .cols = s.v,
            .x_width = s.latent,
            .out_width = s.v,
            .w_rows = s.nope + s.v,
            .first_row = s.nope,
            .latent = s.latent,
            .across_rows = true,
            .copied = 0},
           p.kv_b.dtype(), numerics, stream);
}

}  // namespace fovea::cuda
