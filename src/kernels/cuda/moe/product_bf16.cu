// Grouped products on tensor cores: a block computes kTileRows rows of one expert by kCols outputs, each of its four warps a
// quarter. Rows of x, wherever they lie, and of the matrices come to shared memory kDepth elements at a time, the next while the
// present ones are multiplied.
#include <cuda_runtime.h>

#include "base/check.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/moe/args.h"
#include "kernels/cuda/moe/tile.cuh"
#include "kernels/cuda/prefill/ptx.cuh"

namespace fovea::cuda::moe {
namespace {

using namespace prefill;  // PTX

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kCols = 64;
constexpr int kDepth = 64;                   // elements of a row at a time: 128 bytes
constexpr int kChunks = kDepth / 8;          // of 16 bytes
constexpr int kTileBytes = 64 * 2 * kDepth;  // of 64 rows
constexpr int kStageBytes = 3 * kTileBytes;  // x, matrix, up
constexpr int kSharedBytes = 2 * kStageBytes;
static_assert(kTileRows == 64 && kCols == 64);

// Where a 16-byte chunk of a tile lies: the eight rows of a matrix that ldmatrix reads meet different banks.
__device__ uint32_t chunk_at(uint32_t tile, int row, int chunk) { return tile + row * 2 * kDepth + ((chunk ^ (row & 7)) << 4); }

using Sums = float[2][4][4];  // of a warp: two groups of 16 rows by four of 8 outputs

// Grid: (tiles of outputs, tiles of places).
template <bool kGated>
struct Product {
  const ProductArgs& a;
  const int first_col = static_cast<int>(blockIdx.x) * kCols, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t* places;
  const int rows;
  const __nv_bfloat16 *matrix, *up;
  const uint32_t shared = shared_address(shared_memory());

  __device__ Product(const ProductArgs& args, int expert, const int32_t* tile_places, int tile_rows)
      : a(args),
        places(tile_places),
        rows(tile_rows),
        matrix(static_cast<const __nv_bfloat16*>(args.matrix[expert].data())),
        up(static_cast<const __nv_bfloat16*>(args.up[expert].data())) {}

  // Elements [first, first + kDepth) of all rows; what lies beyond them is zero.
  __device__ void load(int stage, int first) const {
    const uint32_t to = shared + stage * kStageBytes;
    const auto* x = static_cast<const __nv_bfloat16*>(a.x);
    for (int i = threadIdx.x; i < 64 * kChunks; i += kThreads) {
      const int row = i / kChunks, chunk = i % kChunks, at = first + 8 * chunk;
      const bool in_x = row < rows && at < a.depth, in_w = first_col + row < a.cols && at < a.depth;
      const int64_t from_x = in_x ? static_cast<int64_t>(places[row] / a.places_per_row) * a.depth + at : 0;
      const int64_t from_w = in_w ? static_cast<int64_t>(first_col + row) * a.depth + at : 0;
      copy_async_16(chunk_at(to, row, chunk), x + from_x, in_x);
      copy_async_16(chunk_at(to + kTileBytes, row, chunk), matrix + from_w, in_w);
      if (kGated) copy_async_16(chunk_at(to + 2 * kTileBytes, row, chunk), up + from_w, in_w);
    }
    copy_async_commit();
  }

  // The warp's quarter: rows 32 (warp / 2) .., outputs 32 (warp % 2) ...
  __device__ void multiply_step(const uint32_t (&x)[2][4], uint32_t tile, int k16, Sums& sums) const {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      // Matrices: outputs 0-7 and 8-15 of these 16, each of the first and of the second 8 elements.
      const int output = warp % 2 * 32 + n * 16 + lane / 16 * 8 + lane % 8;
      uint32_t w[4];
      load_matrices(w, chunk_at(tile, output, 2 * k16 + lane / 8 % 2));
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        multiply_add<__nv_bfloat16>(sums[m][2 * n], x[m], w[0], w[1]);
        multiply_add<__nv_bfloat16>(sums[m][2 * n + 1], x[m], w[2], w[3]);
      }
    }
  }

  __device__ void multiply(int stage, Sums& sums, Sums& ups) const {
    const uint32_t from = shared + stage * kStageBytes;
#pragma unroll
    for (int k16 = 0; k16 < kDepth / 16; ++k16) {
      uint32_t x[2][4];
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const int row = warp / 2 * 32 + m * 16 + lane % 16;
        load_matrices(x[m], chunk_at(from, row, 2 * k16 + lane / 16));
      }
      multiply_step(x, from + kTileBytes, k16, sums);
      if (kGated) multiply_step(x, from + 2 * kTileBytes, k16, ups);
    }
  }

  __device__ void store(const Sums& sums, const Sums& ups) const {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int m = i / 8, n = i / 2 % 4, half = i % 2;
      const int row = warp / 2 * 32 + m * 16 + half * 8 + lane / 4, col = first_col + warp % 2 * 32 + n * 8 + lane % 4 * 2;
      if (row >= rows || col >= a.cols) continue;
      const int64_t at = static_cast<int64_t>(places[row]) * a.cols + col;
      const float x = sums[m][n][2 * half], y = sums[m][n][2 * half + 1];
      if (kGated) {
        *reinterpret_cast<uint32_t*>(static_cast<__nv_bfloat16*>(a.out) + at) =
            pack2<__nv_bfloat16>(gated(x, ups[m][n][2 * half]), gated(y, ups[m][n][2 * half + 1]));
      } else {
        *reinterpret_cast<float2*>(static_cast<float*>(a.out) + at) = {x, y};
      }
    }
  }

  __device__ void run() const {
    Sums sums = {}, ups = {};
    const int steps = (a.depth + kDepth - 1) / kDepth;
    load(0, 0);
    for (int step = 0; step < steps; ++step) {
      if (step + 1 < steps) {
        load((step + 1) % 2, (step + 1) * kDepth);
        copy_async_wait<1>();
      } else {
        copy_async_wait<0>();
      }
      __syncthreads();
      multiply(step % 2, sums, ups);
      __syncthreads();  // the next load writes where this step read
    }
    store(sums, ups);
  }
};

template <bool kGated>
__global__ void __launch_bounds__(kThreads) multiply(const __grid_constant__ ProductArgs a) {
  __shared__ int32_t places[kTileRows];
  const int tile = static_cast<int>(blockIdx.y);
  if (tile >= *a.groups.tiles) return;
  const int rows = load_places(a.groups, tile, places);
  __syncthreads();
  Product<kGated>(a, a.groups.expert[tile], places, rows).run();
}

}  // namespace

cudaError_t prepare_bf16() {
  for (auto* kernel : {&multiply<true>, &multiply<false>}) {
    const cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
    if (e != cudaSuccess) return e;
  }
  return cudaSuccess;
}

void multiply_bf16(const ProductArgs& a, int32_t places, int32_t experts, cudaStream_t stream) {
  FOVEA_CHECK(a.depth % 8 == 0 && a.cols % 8 == 0);
  const dim3 grid(ceil_div(a.cols, kCols), tiles_at_most(places, experts));
  auto* kernel = a.gated ? &multiply<true> : &multiply<false>;
  kernel<<<grid, dim3(kThreads), kSharedBytes, stream>>>(a);
  check_launch("products of experts");
}

}  // namespace fovea::cuda::moe
