// A block computes a tile of kRows x kCols outputs, a thread 8 x 8 or 4 x 4 of them. The next kDepth of k are
// read into registers while the present ones are multiplied out of shared memory.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/linear/tiled_gemm.h"
#include "kernels/cuda/vec.cuh"

namespace fovea::cuda {
namespace {

constexpr int kDepth = 16;  // of k in shared memory at a time
constexpr int kPad = 4;     // floats behind each row of a tile: spreads a column over the banks

// kEach: outputs of a thread along each side, in groups of 4 that lie kRows / (kEach / 4) apart.
template <int kRows_, int kCols_, int kEach_>
struct Shape {
  static constexpr int kRows = kRows_, kCols = kCols_, kEach = kEach_;
  static constexpr int kThreadsDown = kRows / kEach, kThreadsAcross = kCols / kEach;
  static constexpr int kThreads = kThreadsDown * kThreadsAcross;
};
using Large = Shape<128, 128, 8>;
using Small = Shape<32, 64, 4>;

// kSize rows of a row-major matrix by kDepth of k: from global memory to registers to shared memory,
// transposed.
template <typename T, int kSize, int kThreads>
struct TileReader {
  static constexpr int kPerThread = kSize * kDepth / kThreads;
  const T* from;
  int rows, k;  // of the matrix, counted from the tile's first row
  float held[kPerThread];

  __device__ void read(int first_k) {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int at = i * kThreads + threadIdx.x, row = at / kDepth, depth = first_k + at % kDepth;
      held[i] = row < rows && depth < k ? to_f32(from[static_cast<int64_t>(row) * k + depth]) : 0.0f;
    }
  }
  __device__ void store(float (&tile)[kDepth][kSize + kPad]) const {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int at = i * kThreads + threadIdx.x;
      tile[at % kDepth][at / kDepth] = held[i];
    }
  }
};

// A thread's kEach values of one side of a tile: 4 at thread * 4, the next 4 half a tile on.
template <int kEach, int kSize>
__device__ inline void load_side(const float (&row)[kSize + kPad], int thread, float (&out)[kEach]) {
#pragma unroll
  for (int g = 0; g < kEach / 4; ++g) {
    const float4 v = *reinterpret_cast<const float4*>(&row[g * (kSize / (kEach / 4)) + thread * 4]);
    out[4 * g] = v.x, out[4 * g + 1] = v.y, out[4 * g + 2] = v.z, out[4 * g + 3] = v.w;
  }
}
template <int kEach, int kSize>
__device__ inline int side_index(int thread, int i) {
  return i / 4 * (kSize / (kEach / 4)) + thread * 4 + i % 4;
}

template <typename T, typename S>
__global__ void __launch_bounds__(S::kThreads)
    tiled_gemm_kernel(const float* x, int rows, int k, const T* w, int n, const float* bias, float* out, int out_stride) {
  __shared__ alignas(16) float x_tile[kDepth][S::kRows + kPad];
  __shared__ alignas(16) float w_tile[kDepth][S::kCols + kPad];
  const int first_row = blockIdx.y * S::kRows, first_col = blockIdx.x * S::kCols;
  const int down = threadIdx.x / S::kThreadsAcross, across = threadIdx.x % S::kThreadsAcross;
  TileReader<float, S::kRows, S::kThreads> x_reader{x + static_cast<int64_t>(first_row) * k, rows - first_row, k, {}};
  TileReader<T, S::kCols, S::kThreads> w_reader{w + static_cast<int64_t>(first_col) * k, n - first_col, k, {}};

  float sum[S::kEach][S::kEach] = {};
  x_reader.read(0);
  w_reader.read(0);
  for (int first_k = 0; first_k < k; first_k += kDepth) {
    __syncthreads();
    x_reader.store(x_tile);
    w_reader.store(w_tile);
    __syncthreads();
    x_reader.read(first_k + kDepth);
    w_reader.read(first_k + kDepth);
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      float a[S::kEach], b[S::kEach];
      load_side<S::kEach, S::kRows>(x_tile[d], down, a);
      load_side<S::kEach, S::kCols>(w_tile[d], across, b);
#pragma unroll
      for (int i = 0; i < S::kEach; ++i) {
#pragma unroll
        for (int j = 0; j < S::kEach; ++j) sum[i][j] = fmaf(a[i], b[j], sum[i][j]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < S::kEach; ++i) {
    const int row = first_row + side_index<S::kEach, S::kRows>(down, i);
#pragma unroll
    for (int j = 0; j < S::kEach; ++j) {
      const int col = first_col + side_index<S::kEach, S::kCols>(across, j);
      if (row < rows && col < n) out[static_cast<int64_t>(row) * out_stride + col] = bias ? sum[i][j] + bias[col] : sum[i][j];
    }
  }
}

template <typename T, typename S>
void launch(const float* x, int rows, int k, const LinearWeight& weight, int out_stride, cudaStream_t stream) {
  const dim3 grid(ceil_div(weight.n(), S::kCols), ceil_div(rows, S::kRows));
  tiled_gemm_kernel<T, S><<<grid, S::kThreads, 0, stream>>>(x, rows, k, static_cast<const T*>(weight.w.data), weight.n(),
                                                            weight.bias, weight.out, out_stride);
  check_launch("tiled_gemm");
}

}  // namespace

void tiled_gemm(const float* x, int rows, int k, const LinearWeight& weight, int out_stride, cudaStream_t stream) {
  if (rows == 0 || weight.n() == 0) return;
  with_float_type(weight.dtype(), [&](auto type) {
    using T = decltype(type);
    if (rows <= 2 * Small::kRows) {
      launch<T, Small>(x, rows, k, weight, out_stride, stream);
    } else {
      launch<T, Large>(x, rows, k, weight, out_stride, stream);
    }
  });
}

}  // namespace fovea::cuda
