// A thread block computes 16 outputs at a time, a tile, of all rows of x: the weights are the 16-row side of mma.m16n8k16, the rows of x
// its 8-column side, and the warps share k. Codes of weights are whole numbers that bf16 holds, so that nothing is rounded but x, if
// that: sums of the elements that share a scale come out of the tensor cores and are scaled in float32. Each warp copies the pieces that
// it works on into shared memory itself, asynchronously and ahead, across the ends of tiles: there it does not matter that blocks of 18
// or 210 bytes begin anywhere. What a block takes while the launch before it still runs is all that fits its ring.
#pragma once

#include "kernels/cuda/linear/weight_group.cuh"
#include "kernels/cuda/quant/codes.cuh"
#include "kernels/cuda/quant/config.h"

namespace fovea::cuda::quant {

inline constexpr int kThreads = 32 * kWarps;

struct GemvArgs {
  WeightGroup group;
  const uint32_t* scales[WeightGroup::kMax];
  int scales_per_row, scale_step;  // scale_step: 32s of k that share one
  uint32_t scale_magic;            // 2^32 / scale_step, rounded up; 0 where that is 1
  int64_t row_bytes;
  const float* x;      // [rows, k]
  const uint4* ready;  // x as fragments of the tensor cores; null: the thread block makes them
  int rows, k, parts, blocks;
  GemvPlan plan;
};

// Bits of the launch's kernel, of a type: quant/gemv_*.cu.
using GemvKernel = void (*)(GemvArgs);
template <WeightType kType>
GemvKernel gemv_kernel(int columns);

__device__ __forceinline__ void copy_16(void* to, const void* from, int bytes) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copy_4(void* to, const void* from) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(from) : "memory");
}
__device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kLater>  // all but the last kLater groups have come
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLater) : "memory");
}

__device__ __forceinline__ void mma(float (&sum)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// x as columns of bf16 numbers in the order of Pairs: to[k / 32][columns][part]. A row is `parts` columns that add up to it.
__device__ inline void make_fragments(const float* x, int rows, int k, int parts, int first, int step, uint4* to) {
  const int pieces = k / 8;
  for (int i = first; i < rows * pieces; i += step) {
    const int row = i / pieces, piece = i % pieces, part = piece % 4;
    const float* from = x + static_cast<int64_t>(row) * k + piece / 4 * 32 + part * 4;
    float4 v[2] = {*reinterpret_cast<const float4*>(from), *reinterpret_cast<const float4*>(from + 16)};
    for (int p = 0; p < parts; ++p) {
      uint32_t out[4];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const __nv_bfloat162 even = __floats2bfloat162_rn(v[h].x, v[h].z), odd = __floats2bfloat162_rn(v[h].y, v[h].w);
        v[h].x -= __low2float(even), v[h].z -= __high2float(even);
        v[h].y -= __low2float(odd), v[h].w -= __high2float(odd);
        out[2 * h] = as_bits(even), out[2 * h + 1] = as_bits(odd);
      }
      to[(piece / 4 * rows * parts + row * parts + p) * 4 + part] = {out[0], out[1], out[2], out[3]};
    }
  }
}

// What a lane of a warp does: it has rows lane / 4 and 8 more of a tile, and part lane % 4 of each 32 elements.
template <typename C, int kTiles>
struct Lane {
  const GemvArgs& a;
  uint8_t* ring;  // the warp's
  const uint4* x;
  int warp, row, part;
  int made_tile, made_piece;  // which piece is copied next

  __device__ int columns() const { return a.rows * a.parts; }
  __device__ uint8_t* slot(int i) const { return ring + i * a.plan.slot_bytes; }
  __device__ uint32_t* scales_of(int i) const { return reinterpret_cast<uint32_t*>(slot(i) + kOutputs * a.plan.row_stride); }
  __device__ int blocks_of(int piece) const { return min(a.plan.stage_blocks, a.blocks - piece * a.plan.stage_blocks); }
  // Where a row's piece begins, beyond a multiple of 16. Data begin on one.
  __device__ int shift(int64_t line, int piece) const {
    if constexpr (C::kBytes % 16 == 0) return 0;
    return static_cast<int>((static_cast<uint32_t>(line) * static_cast<uint32_t>(a.row_bytes) + piece * a.plan.stage_blocks * C::kBytes) & 15);
  }
  __device__ static int64_t line_of(int first, int row, int n) { return min(first + row, n - 1); }

  __device__ void copy_next(int to) {
    if (made_tile < a.group.end_tile[a.group.count - 1] && made_piece < a.plan.pieces) {
      int tile = made_tile;
      const int w = a.group.find(tile), n = a.group.n[w], blocks = blocks_of(made_piece);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int64_t line = line_of(tile * kOutputs, row + 8 * h, n);
        const int before = shift(line, made_piece), bytes = before + blocks * C::kBytes;
        const uint8_t* from = static_cast<const uint8_t*>(a.group.w[w]) + line * a.row_bytes +
                              static_cast<int64_t>(made_piece) * a.plan.stage_blocks * C::kBytes - before;
        uint8_t* line_to = slot(to) + (row + 8 * h) * a.plan.row_stride;
        for (int at = part * 16; at < bytes; at += 64) copy_16(line_to + at, from + at, min(16, bytes - at));
        if constexpr (C::kApart) {
          const uint32_t* scales = a.scales[w] + line * a.scales_per_row;
          for (int i = part; i < blocks; i += 4) {
            const uint32_t of_32 = made_piece * a.plan.stage_blocks + i;
            copy_4(scales_of(to) + i * kOutputs + row + 8 * h, scales + (a.scale_magic ? __umulhi(of_32, a.scale_magic) : of_32));
          }
        }
      }
      made_piece += kWarps;
      if (made_piece >= a.plan.pieces) made_piece = warp, made_tile += gridDim.x;
    }
    end_copies();
  }

  // One piece of the tile whose first output is `first` of n.
  __device__ void multiply(int from, int first, int n, int piece, float (&sum)[kTiles][4]) const {
    constexpr uint32_t kOnes = 0x3f803f80;
    const uint8_t* lines[2];
#pragma unroll
    for (int h = 0; h < 2; ++h)
      lines[h] = slot(from) + (row + 8 * h) * a.plan.row_stride + shift(line_of(first, row + 8 * h, n), piece);
    const int blocks = blocks_of(piece), cols = columns();
    for (int i = 0; i < blocks; ++i) {
      typename C::Head head[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) head[h] = C::head(lines[h], C::kApart ? scales_of(from)[i * kOutputs + row + 8 * h] : 0);
      const int of_32 = (piece * a.plan.stage_blocks + i) * (C::kElements / 32);
#pragma unroll
      for (int b = 0; b < C::kElements / 32; ++b) {
        const Pairs upper = C::codes(lines[0], head[0], b, part), lower = C::codes(lines[1], head[1], b, part);
        const Scales s[2] = {C::scales(lines[0], head[0], b), C::scales(lines[1], head[1], b)};
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          const int column = t * 8 + row;
          uint4 v = {};
          if (column < cols) v = x[((of_32 + b) * cols + column) * 4 + part];
          float products[2][4] = {}, sums[2][4] = {};  // of each 16 elements; where 32 share a scale all are in the first
          constexpr int kSecond = C::kGroup == 16 ? 1 : 0;
          mma(products[0], upper.v[0], lower.v[0], upper.v[1], lower.v[1], v.x, v.y);
          mma(products[kSecond], upper.v[2], lower.v[2], upper.v[3], lower.v[3], v.z, v.w);
          if constexpr (C::kMinimums) {
            mma(sums[0], kOnes, kOnes, kOnes, kOnes, v.x, v.y);
            mma(sums[kSecond], kOnes, kOnes, kOnes, kOnes, v.z, v.w);
          }
#pragma unroll
          for (int g = 0; g <= kSecond; ++g) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              sum[t][j] = fmaf(s[j / 2].scale[g], products[g][j], sum[t][j]);
              if constexpr (C::kMinimums) sum[t][j] = fmaf(s[j / 2].minimum[g], sums[g][j], sum[t][j]);
            }
          }
        }
      }
      lines[0] += C::kBytes, lines[1] += C::kBytes;
    }
  }
};

// kTiles: of 8 columns.
template <WeightType kType, int kTiles>
__global__ void __launch_bounds__(kThreads, 2) gemv_of(const __grid_constant__ GemvArgs a) {
  using C = Codes<kType>;
  using Sums = float[kWarps][kTiles * 8][kOutputs];
  extern __shared__ __align__(16) uint8_t shared[];
  let_next_begin();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  auto* sums = reinterpret_cast<Sums*>(shared + a.plan.x_bytes);  // of every second tile
  uint8_t* ring = shared + a.plan.x_bytes + 2 * sizeof(Sums) + warp * kSlots * a.plan.slot_bytes;
  auto* own_x = reinterpret_cast<uint4*>(shared);
  Lane<C, kTiles> l{a, ring, a.ready ? a.ready : own_x, warp, lane / 4, lane % 4, static_cast<int>(blockIdx.x), warp};
#pragma unroll
  for (int i = 0; i < kSlots; ++i) l.copy_next(i);
  wait_for_previous();  // weights are there always, x only now
  if (!a.ready) {
    make_fragments(a.x, a.rows, a.k, a.parts, threadIdx.x, kThreads, own_x);
    __syncthreads();
  }
  int slot = 0;
  for (int at = blockIdx.x, turn = 0; at < a.group.end_tile[a.group.count - 1]; at += gridDim.x, turn ^= 1) {
    int tile = at;
    const int w = a.group.find(tile), first = tile * kOutputs, n = a.group.n[w];
    float sum[kTiles][4] = {};
    for (int piece = warp; piece < a.plan.pieces; piece += kWarps) {
      wait_for_copies<kSlots - 1>();
      __syncwarp();
      l.multiply(slot, first, n, piece, sum);
      __syncwarp();
      l.copy_next(slot);
      slot = slot + 1 == kSlots ? 0 : slot + 1;
    }
    Sums& all = sums[turn];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) all[warp][t * 8 + lane % 4 * 2 + i % 2][lane / 4 + i / 2 * 8] = sum[t][i];
    }
    __syncthreads();  // one a tile: who comes here again has left the sums of two tiles ago
    for (int i = threadIdx.x; i < a.rows * kOutputs; i += kThreads) {
      const int r = i / kOutputs, c = i % kOutputs;
      if (first + c >= n) continue;
      float total = a.group.bias[w] ? a.group.bias[w][first + c] : 0.0f;
      for (int p = 0; p < a.parts; ++p) {
#pragma unroll
        for (int other = 0; other < kWarps; ++other) total += all[other][r * a.parts + p][c];
      }
      a.group.out[w][static_cast<int64_t>(r) * n + first + c] = total;
    }
  }
}

// Defines gemv_kernel of a type.
#define FOVEA_QUANT_GEMV(type)                                                        \
  template <>                                                                         \
  GemvKernel gemv_kernel<WeightType::type>(int columns) {                             \
    return columns <= 8 ? &gemv_of<WeightType::type, 1> : &gemv_of<WeightType::type, 2>; \
  }

}  // namespace fovea::cuda::quant
