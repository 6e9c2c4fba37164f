// One or two rows, where x may be rounded: tensor cores multiply bytes. x is rounded to 15 bits of the largest of each group (the
// elements that share a scale), which are two bytes: whole numbers, summed exactly. The columns of mma.m16n8k32 are eight groups in
// turn, all but one of which meet zeros, so that a scale is applied once for all of eight groups, by a lane that has two of them, and not
// by every lane for columns that nobody asked for: of 4-bit weights, instructions and not memory are the limit.
#pragma once

#include "kernels/cuda/quant/ring.cuh"

namespace fovea::cuda::quant {

__device__ __forceinline__ void mma(int (&sum)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Eight groups of a row of x as the lanes of a warp hold them.
template <int kGroup>
struct Octet {
  static constexpr int kWords = kGroup / 16;
  uint32_t high[32][kWords], low[32][kWords];  // lane 4 g + part: group g, its elements from 4 part on and 16 more than those
  float2 factors[8];                           // what the numbers high * 128 + low are times of, and the group's sum
};

// Four numbers as bytes high and low.
__device__ __forceinline__ void split_bytes(float4 v, float inverse, uint32_t* high, uint32_t* low, int* sum) {
  const int n[4] = {__float2int_rn(v.x * inverse), __float2int_rn(v.y * inverse), __float2int_rn(v.z * inverse),
                    __float2int_rn(v.w * inverse)};
  uint32_t h = 0, l = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int upper = (n[i] + 64) >> 7;
    h |= static_cast<uint32_t>(upper & 255) << (8 * i);
    l |= static_cast<uint32_t>((n[i] - upper * 128) & 255) << (8 * i);
    *sum += n[i];
  }
  *high = h, *low = l;
}
// The greatest magnitude, NaN above all, as bits.
__device__ __forceinline__ uint32_t magnitude(float4 v) {
  const auto bits = [](float f) { return __float_as_uint(f) & 0x7fffffffu; };
  return max(max(bits(v.x), bits(v.y)), max(bits(v.z), bits(v.w)));
}

// A thread's 8 elements of a row: part i % 4 of 32 of them, as they lie in Octet.
template <int kGroup>
__device__ __forceinline__ void make_part(const float4 (&v)[2], int i, int of_32, Octet<kGroup>* row_to) {
  constexpr float kMost = 127 * 128;
  const uint32_t quad = 15u << (threadIdx.x % 32 & 28);
  const int part = i % 4;
  uint32_t most[2] = {magnitude(v[0]), magnitude(v[1])}, high[2], low[2];
  if (kGroup == 32) most[0] = most[1] = max(most[0], most[1]);
  int sum[2] = {};
  float step[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    most[h] = max(most[h], __shfl_xor_sync(quad, most[h], 1));
    most[h] = max(most[h], __shfl_xor_sync(quad, most[h], 2));
    step[h] = __uint_as_float(most[h]) * (1.0f / kMost);
    const float inverse =
        most[h] < 0x07800000u ? 0.0f : __fdividef(kMost, __uint_as_float(most[h]));  // below 2^-112 it would not be finite
    split_bytes(v[h], inverse, &high[h], &low[h], &sum[h]);
    sum[h] += __shfl_xor_sync(quad, sum[h], 1);
    sum[h] += __shfl_xor_sync(quad, sum[h], 2);
  }
  if constexpr (kGroup == 32) {
    Octet<kGroup>& o = row_to[of_32 / 8];
    const int g = of_32 % 8;
#pragma unroll
    for (int h = 0; h < 2; ++h) o.high[4 * g + part][h] = high[h], o.low[4 * g + part][h] = low[h];
    if (part == 0) o.factors[g] = {step[0], step[0] * static_cast<float>(sum[0] + sum[1])};
  } else {
    Octet<kGroup>& o = row_to[of_32 / 4];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int g = of_32 % 4 * 2 + h;
      o.high[4 * g + part][0] = high[h], o.low[4 * g + part][0] = low[h];
      if (part == 0) o.factors[g] = {step[h], step[h] * static_cast<float>(sum[h])};
    }
  }
}

// Octets of all rows; groups beyond k are zeros. Several loads are under way before the first is used.
template <int kGroup>
__device__ __forceinline__ void make_octets(const float* x, int rows, int k, int octets, Octet<kGroup>* to) {
  constexpr int kAtOnce = 2;
  const int pieces = octets * kGroup;  // of 8 elements
  for (int row = 0; row < rows; ++row, x += k, to += octets) {
    for (int base = threadIdx.x; base < pieces; base += kAtOnce * kThreads) {
      float4 v[kAtOnce][2] = {};
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int i = base + j * kThreads;
        if (i * 8 >= k) continue;  // k is a multiple of 32
        const float* from = x + i / 4 * 32 + i % 4 * 4;
        v[j][0] = *reinterpret_cast<const float4*>(from), v[j][1] = *reinterpret_cast<const float4*>(from + 16);
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int i = base + j * kThreads;
        if (i < pieces) make_part<kGroup>(v[j], i, i / 4, to);
      }
    }
  }
}

template <typename C>
using DotRing = Ring<C, dot_stage_blocks(C::kBytes), dot_slots(C::kBytes), true>;

// One piece of the tile whose first output is `first` of n: sums of the lane's rows, over its groups.
template <typename C, int kRows>
__device__ __forceinline__ void multiply(const GemvArgs& a, const DotRing<C>& ring, const Octet<C::kGroup>* x, int octets, int slot,
                                         int first, int n, int piece, const uint32_t (&only)[8],
                                         float (&sum)[kRows][kOutputs / 8]) {
  constexpr int kLines = kOutputs / 8, kWords = Octet<C::kGroup>::kWords;
  constexpr int kOf32 = C::kGroup / 4;                                              // 32s of an octet
  constexpr int kBlocks = C::kElements == 32 ? kOf32 : 1;                           // that an octet reaches into
  constexpr int kOctets = C::kElements == 32 ? 1 : C::kElements / (8 * C::kGroup);  // of a block
  const uint8_t* lines[kLines];
#pragma unroll
  for (int h = 0; h < kLines; ++h) lines[h] = ring.line(slot, h, first, n, piece);
  const int lane = threadIdx.x % 32, blocks = ring.blocks_of(piece);
  const Octet<C::kGroup>* at = x + piece * (a.plan.stage_blocks * kOctets / kBlocks);
#pragma unroll 1
  for (int i = 0; i < blocks; i += kBlocks) {
#pragma unroll
    for (int o = 0; o < kOctets; ++o, ++at) {
      uint32_t high[kRows][kWords], low[kRows][kWords];
      int dots[kRows][kLines / 2][2][4] = {};  // of rows 16 apart; of high and of low bytes
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int j = 0; j < kWords; ++j) high[r][j] = at[r * octets].high[lane][j], low[r][j] = at[r * octets].low[lane][j];
      }
#pragma unroll
      for (int b = 0; b < kOf32; ++b) {
        const int block = C::kElements == 32 ? b * C::kBytes : 0, of = C::kElements == 32 ? 0 : o * kOf32 + b;
        uint32_t only_high[kRows][2], only_low[kRows][2];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
          for (int j = 0; j < 2; ++j) {  // two halves of a group, or two groups
            const uint32_t mask = kWords == 2 ? only[b] : only[2 * b + j];
            only_high[r][j] = high[r][j % kWords] & mask, only_low[r][j] = low[r][j % kWords] & mask;
          }
        }
#pragma unroll
        for (int m = 0; m < kLines / 2; ++m) {
          const uint2 upper = C::bytes(lines[2 * m] + block, of, ring.part),
                      lower = C::bytes(lines[2 * m + 1] + block, of, ring.part);
#pragma unroll
          for (int r = 0; r < kRows; ++r) {
            mma(dots[r][m][0], upper.x, lower.x, upper.y, lower.y, only_high[r][0], only_high[r][1]);
            mma(dots[r][m][1], upper.x, lower.x, upper.y, lower.y, only_low[r][0], only_low[r][1]);
          }
        }
      }
      float4 factors[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) factors[r] = reinterpret_cast<const float4*>(at[r * octets].factors)[ring.part];
#pragma unroll
      for (int h = 0; h < kLines; ++h) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int g = 2 * ring.part + j;  // of the octet
          const int block = C::kElements == 32 ? g : 0, of = C::kElements == 32 ? 0 : (o * 8 + g) * C::kGroup / 32;
          if (C::kElements == 32 && i + g >= blocks) continue;  // what lies there is no scale
          const uint8_t* p = lines[h] + block * C::kBytes;
          const typename C::Head head = C::head(p, ring.scale(slot, h, i + block));
          const Scales s = C::scales(p, head, of);
          const int half = C::kGroup == 16 ? j : 0;  // groups of 16 come in pairs
          const float scale = s.scale[half];
          float added = s.minimum[half];
          if constexpr (C::kLess) added = fmaf(-static_cast<float>(C::less(head)), scale, added);
#pragma unroll
          for (int r = 0; r < kRows; ++r) {
            const int dot = dots[r][h / 2][0][h % 2 * 2 + j] * 128 + dots[r][h / 2][1][h % 2 * 2 + j];
            const float step = j == 0 ? factors[r].x : factors[r].z, x_sum = j == 0 ? factors[r].y : factors[r].w;
            sum[r][h] = fmaf(scale, step * static_cast<float>(dot), sum[r][h]);
            if constexpr (C::kMinimums || C::kLess) sum[r][h] = fmaf(added, x_sum, sum[r][h]);
          }
        }
      }
    }
#pragma unroll
    for (int h = 0; h < kLines; ++h) lines[h] += kBlocks * C::kBytes;
  }
}

// What the warps have of some tiles becomes outputs: one tile for every 16 threads and row.
template <int kRows>
__device__ __forceinline__ void put_together(const GemvArgs& a, int first_tile, int tiles,
                                             const float (&sums)[kDotTiles][kWarps][kRows][kOutputs]) {
  const int i = threadIdx.x / (kRows * kOutputs), r = threadIdx.x / kOutputs % kRows, c = threadIdx.x % kOutputs;
  if (i >= tiles) return;
  int tile = first_tile + i * static_cast<int>(gridDim.x);
  const int w = a.group.find(tile), n = a.group.n[w], output = tile * kOutputs + c;
  if (output >= n) return;
  float total = a.group.bias[w] ? a.group.bias[w][output] : 0.0f;
#pragma unroll
  for (int other = 0; other < kWarps; ++other) total += sums[i][other][r][c];
  a.group.out[w][static_cast<int64_t>(r) * n + output] = total;
}

template <WeightType kType, int kRows>
__global__ void __launch_bounds__(kThreads, 2) dot_of(const __grid_constant__ GemvArgs a) {
  using C = Codes<kType>;
  using Sums = float[kDotTiles][kWarps][kRows][kOutputs];
  static_assert(kDotTiles * kRows * kOutputs <= kThreads);
  extern __shared__ __align__(16) uint8_t shared[];
  let_next_begin();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, octets = ceil_div(a.k, 8 * C::kGroup);
  auto* sums = reinterpret_cast<Sums*>(shared + a.plan.x_bytes);
  constexpr int kSlots = dot_slots(C::kBytes);
  DotRing<C> ring(a, shared + a.plan.x_bytes + 2 * sizeof(Sums) + warp * a.plan.ring_bytes);
#pragma unroll 1
  for (int i = 0; i < kSlots; ++i) ring.copy_next(i);
  wait_for_previous();  // weights are there always, x only now
  auto* x = reinterpret_cast<Octet<C::kGroup>*>(shared);
  make_octets<C::kGroup>(a.x, kRows, a.k, octets, x);
  __syncthreads();
  uint32_t only[8];  // all bits in the lanes of one column
#pragma unroll
  for (int g = 0; g < 8; ++g) {
    only[g] = lane / 4 == g ? ~0u : 0u;
    asm volatile("" : "+r"(only[g]));  // kept in registers, not made again for each piece
  }
  int slot = 0, begun = 0, first_begun = blockIdx.x, turn = 0;
  for (int at = blockIdx.x; at < ring.tiles(); at += gridDim.x) {
    int tile = at;
    const int w = a.group.find(tile), first = tile * kOutputs, n = a.group.n[w];
    float sum[kRows][kOutputs / 8] = {};
    for (int piece = warp; piece < a.plan.pieces; piece += kWarps) {
      ring.wait(slot);
      multiply(a, ring, x, octets, slot, first, n, piece, only, sum);
      __syncwarp();
      ring.copy_next(slot);
      slot = slot + 1 == kSlots ? 0 : slot + 1;
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int h = 0; h < kOutputs / 8; ++h) {
        float s = sum[r][h];
        s += __shfl_xor_sync(0xffffffffu, s, 1);
        s += __shfl_xor_sync(0xffffffffu, s, 2);
        if (lane % 4 == 0) sums[turn][begun][warp][r][lane / 4 + 8 * h] = s;
      }
    }
    if (++begun < kDotTiles && at + static_cast<int>(gridDim.x) < ring.tiles()) continue;
    __syncthreads();  // one for some tiles: who comes here again has left the sums of the time before last
    put_together<kRows>(a, first_begun, begun, sums[turn]);
    first_begun = at + gridDim.x, begun = 0, turn ^= 1;
  }
}

}  // namespace fovea::cuda::quant
