// The products on tensor cores: a block computes 64 rows by 64 outputs of one head, each of its four warps a quarter. The next part of
// the weights, and of x in registers, is on its way while the present one is multiplied.
#include <cuda_runtime.h>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/mla/product.h"
#include "kernels/cuda/prefill/ptx.cuh"
#include "kernels/cuda/vec.cuh"

namespace fovea::cuda::mla {
namespace {

using namespace prefill;  // PTX

constexpr int kThreads = 128;
constexpr int kRows = 64, kCols = 64;
constexpr int kDepth = 64;                  // of the inner dimension at a time
constexpr int kTileBytes = 64 * 128;        // 64 rows of 64 elements
constexpr int kChunks = 64 * 8 / kThreads;  // of 16 bytes, of a tile, that a thread copies
using Sums = float[2][4][4];                // of a warp: two groups of 16 rows by four of 8 outputs

// Where a 16-byte chunk of a tile lies: the eight rows of a matrix that ldmatrix reads meet different banks.
__device__ uint32_t chunk_at(uint32_t tile, int row, int chunk) { return tile + row * 128 + ((chunk ^ (row & 7)) << 4); }

template <bool kAcrossRows>
struct Tile {
  const Product& p;
  const int head = static_cast<int>(blockIdx.z), first_row = static_cast<int>(blockIdx.y) * kRows,
            first_col = static_cast<int>(blockIdx.x) * kCols;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const __nv_bfloat16* w;
  const uint32_t x_tiles, w_tiles;  // two of each
  float4 held[kChunks][2];          // x of the next part

  __device__ Tile(const Product& product, uint32_t x_to, uint32_t w_to)
      : p(product),
        w(static_cast<const __nv_bfloat16*>(product.w) +
          (static_cast<int64_t>(blockIdx.z) * product.w_rows + product.first_row) * product.latent),
        x_tiles(x_to),
        w_tiles(w_to) {}

  __device__ const float* x_at(int row) const { return p.x + (static_cast<int64_t>(first_row + row) * p.heads + head) * p.x_width; }
  __device__ float* out_at(int row) const { return p.out + (static_cast<int64_t>(first_row + row) * p.heads + head) * p.out_width; }

  // Part `part` of the weights to its stage, and of x to registers; what lies beyond either is zero.
  __device__ void load(int part) {
    const int first = part * kDepth;
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int at = i * kThreads + static_cast<int>(threadIdx.x), row = at / 8, chunk = at % 8;
      const int col = first_col + (kAcrossRows ? row : 8 * chunk), k = first + (kAcrossRows ? 8 * chunk : row);
      const bool there = col < p.cols && k < p.depth;
      const int64_t from =
          there ? kAcrossRows ? static_cast<int64_t>(col) * p.latent + k : static_cast<int64_t>(k) * p.latent + col : 0;
      copy_async_16(chunk_at(w_tiles + part % 2 * kTileBytes, row, chunk), w + from, there);
      const bool in_x = first_row + row < p.rows && first + 8 * chunk < p.depth;
      const auto* x = reinterpret_cast<const float4*>(x_at(in_x ? row : 0) + (in_x ? first + 8 * chunk : 0));
      held[i][0] = in_x ? x[0] : float4{};
      held[i][1] = in_x ? x[1] : float4{};
    }
    copy_async_commit();
  }

  __device__ void store_x(int part, uint8_t* x) const {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int at = i * kThreads + static_cast<int>(threadIdx.x);
      const float4 a = held[i][0], b = held[i][1];
      using T = __nv_bfloat16;
      *reinterpret_cast<uint4*>(x + chunk_at(part % 2 * kTileBytes, at / 8, at % 8)) =
          make_uint4(pack2<T>(a.x, a.y), pack2<T>(a.z, a.w), pack2<T>(b.x, b.y), pack2<T>(b.z, b.w));
    }
  }

  // The warp's quarter: rows 32 (warp / 2) .., outputs 32 (warp % 2) ...
  __device__ void multiply(int part, Sums& sums) const {
    const uint32_t x_tile = x_tiles + part % 2 * kTileBytes, w_tile = w_tiles + part % 2 * kTileBytes;
#pragma unroll
    for (int step = 0; step < kDepth / 16; ++step) {
      uint32_t x[2][4];
#pragma unroll
      for (int m = 0; m < 2; ++m) load_matrices(x[m], chunk_at(x_tile, warp / 2 * 32 + m * 16 + lane % 16, 2 * step + lane / 16));
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        // Matrices: outputs 0-7 and 8-15 of these 16, each of the first and of the second 8 of the inner dimension.
        const int first = warp % 2 * 32 + n * 16, second = lane / 16, half = lane / 8 % 2;
        uint32_t b[4];
        if constexpr (kAcrossRows) {
          load_matrices(b, chunk_at(w_tile, first + second * 8 + lane % 8, 2 * step + half));
        } else {
          load_matrices_transposed(b, chunk_at(w_tile, 16 * step + half * 8 + lane % 8, first / 8 + second));
        }
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          multiply_add<__nv_bfloat16>(sums[m][2 * n], x[m], b[0], b[1]);
          multiply_add<__nv_bfloat16>(sums[m][2 * n + 1], x[m], b[2], b[3]);
        }
      }
    }
  }

  __device__ void store(const Sums& sums) const {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int m = i / 8, n = i / 2 % 4, half = i % 2;
      const int row = warp / 2 * 32 + m * 16 + half * 8 + lane / 4, col = first_col + warp % 2 * 32 + n * 8 + lane % 4 * 2;
      if (first_row + row < p.rows && col < p.cols)
        *reinterpret_cast<float2*>(out_at(row) + col) = {sums[m][n][2 * half], sums[m][n][2 * half + 1]};
    }
    if (blockIdx.x > 0) return;
    for (int i = threadIdx.x; i < kRows * p.copied; i += kThreads) {
      const int row = i / p.copied, e = i % p.copied;
      if (first_row + row < p.rows) out_at(row)[p.cols + e] = x_at(row)[p.depth + e];
    }
  }
};

// Grid: (tiles of outputs, tiles of rows, heads).
template <bool kAcrossRows>
__global__ void __launch_bounds__(kThreads) multiply_tiles(const __grid_constant__ Product p) {
  __shared__ alignas(128) uint8_t x[2 * kTileBytes];
  __shared__ alignas(128) uint8_t w[2 * kTileBytes];
  Tile<kAcrossRows> tile(p, shared_address(x), shared_address(w));
  Sums sums = {};
  const int parts = ceil_div(p.depth, kDepth);
  tile.load(0);
  for (int part = 0; part < parts; ++part) {
    tile.store_x(part, x);
    copy_async_wait<0>();
    __syncthreads();
    if (part + 1 < parts) tile.load(part + 1);  // where part - 1 lay: all are done with it
    tile.multiply(part, sums);
  }
  tile.store(sums);
}

}  // namespace

bool on_vectors(const Product& p) {
  return p.depth % 8 == 0 && p.cols % 8 == 0 && p.latent % 8 == 0 && p.x_width % 4 == 0 && p.out_width % 2 == 0 && aligned16(p.x) &&
         aligned16(p.w) && aligned16(p.out);
}

void multiply_bf16(const Product& p, cudaStream_t stream) {
  const dim3 grid(ceil_div(p.cols, kCols), ceil_div(p.rows, kRows), p.heads);
  auto* kernel = p.across_rows ? &multiply_tiles<true> : &multiply_tiles<false>;
  kernel<<<grid, dim3(kThreads), 0, stream>>>(p);
  check_launch("mla product");
}

}  // namespace fovea::cuda::mla
