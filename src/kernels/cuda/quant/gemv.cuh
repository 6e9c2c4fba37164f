// A thread block computes 16 outputs at a time, a tile, of all rows of x: the weights are the 16-row side of mma.m16n8k16, the rows of x
// its 8-column side, and the warps share k. Codes of weights are numbers that bf16 holds, so that nothing is rounded but x, if that:
// sums of the elements that share a scale come out of the tensor cores and are scaled in float32.
#pragma once

#include "kernels/cuda/quant/ring.cuh"

namespace fovea::cuda::quant {

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

// One piece of the tile whose first output is `first` of n.
template <typename C, int kStage, int kTiles>
__device__ __forceinline__ void multiply(const GemvArgs& a, const Ring<C, kStage, kSlots, false>& ring, const uint4* x, int slot,
                                         int first, int n, int piece, float (&sum)[kTiles][4]) {
  constexpr uint32_t kOnes = 0x3f803f80;
  const uint8_t* lines[2] = {ring.line(slot, 0, first, n, piece), ring.line(slot, 1, first, n, piece)};
  const int blocks = ring.blocks_of(piece), columns = a.rows * a.parts;
  const uint4* at =
      x + (static_cast<int64_t>(piece) * a.plan.stage_blocks * (C::kElements / 32) * columns + ring.row) * 4 + ring.part;
  constexpr int kAtOnce = C::kElements == 32 ? 4 : 1;
#pragma unroll kAtOnce
  for (int i = 0; i < blocks; ++i) {
    const typename C::Head head[2] = {C::head(lines[0], ring.scale(slot, 0, piece, i)),
                                      C::head(lines[1], ring.scale(slot, 1, piece, i))};
#pragma unroll
    for (int b = 0; b < C::kElements / 32; ++b, at += 4 * columns) {
      const Pairs upper = pairs_of<C>(lines[0], head[0], b, ring.part), lower = pairs_of<C>(lines[1], head[1], b, ring.part);
      const Scales s[2] = {C::scales(lines[0], head[0], b), C::scales(lines[1], head[1], b)};
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        uint4 v = {};
        if (t * 8 + ring.row < columns) v = at[t * 32];
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

// kTiles: of 8 columns.
template <WeightType kType, int kTiles>
__global__ void __launch_bounds__(kThreads, 2) gemv_of(const __grid_constant__ GemvArgs a) {
  using C = Codes<kType>;
  using Sums = float[kWarps][kTiles * 8][kOutputs];
  extern __shared__ __align__(16) uint8_t shared[];
  let_next_begin();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  auto* sums = reinterpret_cast<Sums*>(shared + a.plan.x_bytes);  // of every second tile
  Ring<C, stage_blocks(C::kBytes), kSlots, false> ring(a, shared + a.plan.x_bytes + 2 * sizeof(Sums) + warp * a.plan.ring_bytes);
#pragma unroll 1
  for (int i = 0; i < kSlots; ++i) ring.copy_next(i);
  wait_for_previous();  // weights are there always, x only now
  auto* own_x = reinterpret_cast<uint4*>(shared);
  if (!a.ready) {
    make_fragments(a.x, a.rows, a.k, a.parts, threadIdx.x, kThreads, own_x);
    __syncthreads();
  }
  int slot = 0;
  for (int at = blockIdx.x, turn = 0; at < ring.tiles(); at += gridDim.x, turn ^= 1) {
    int tile = at;
    const int w = a.group.find(tile), first = tile * kOutputs, n = a.group.n[w];
    float sum[kTiles][4] = {};
    for (int piece = warp; piece < a.plan.pieces; piece += kWarps) {
      ring.wait(slot);
      multiply(a, ring, a.ready ? a.ready : own_x, slot, first, n, piece, sum);
      __syncwarp();
      ring.copy_next(slot);
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

}  // namespace fovea::cuda::quant
