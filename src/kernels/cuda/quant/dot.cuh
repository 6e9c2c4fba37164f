// One or two rows, where x may be rounded: tensor cores multiply bytes. x is rounded to 15 bits of the largest of each group (the
// elements that share a scale), which are two bytes: whole numbers, summed exactly. Lanes of part p take the weights of a chunk (32
// elements) of their own, and of the product's columns 2 p and 2 p + 1 alone meet its x, the high and the low bytes: other chunks'
// x is zero there. So a lane is left with the sums of its chunk, and applies its scale once, not every lane for columns that nobody
// asked for; it reads weights 16 bytes at a time, and what is zero never changes.
#pragma once

#include "kernels/cuda/elementwise/silu.cuh"
#include "kernels/cuda/quant/dot_x.cuh"
#include "kernels/cuda/quant/ring.cuh"

namespace fovea::cuda::quant {

// A chunk's eight words by four products: `upper` and `lower` of rows 8 apart.
template <bool kSigned>
__device__ __forceinline__ void mma(int (&sum)[4], uint2 upper, uint2 lower, uint32_t b0, uint32_t b1) {
  if constexpr (kSigned) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
        : "r"(upper.x), "r"(lower.x), "r"(upper.y), "r"(lower.y), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
        : "r"(upper.x), "r"(lower.x), "r"(upper.y), "r"(lower.y), "r"(b0), "r"(b1));
  }
}
// Of half a chunk.
template <bool kSigned>
__device__ __forceinline__ void mma(int (&sum)[4], uint32_t upper, uint32_t lower, uint32_t b) {
  if constexpr (kSigned) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
                 : "r"(upper), "r"(lower), "r"(b));
  } else {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
                 : "r"(upper), "r"(lower), "r"(b));
  }
}

template <typename C>
using DotRing = Ring<C, dot_stage_blocks(C::kBytes), dot_slots(C::kBytes), true>;

// Reads where `active`; else `to` stays as it is.
__device__ __forceinline__ void load_where(bool active, uint32_t from, uint32_t (&to)[4]) {
  asm volatile(
      "{\n"
      ".reg .pred there;\n"
      "setp.ne.u32 there, %4, 0;\n"
      "@there ld.shared.v4.u32 {%0, %1, %2, %3}, [%5];\n"
      "}\n"
      : "+r"(to[0]), "+r"(to[1]), "+r"(to[2]), "+r"(to[3])
      : "r"(static_cast<uint32_t>(active)), "r"(from)
      : "memory");
}

// Two chunks, `part` of eight, of a row: 8 words of each, as C::bytes has them. p: where its blocks begin.
template <typename C>
__device__ __forceinline__ void two_chunks(const uint8_t* p, int part, uint2 (&words)[2][4]) {
  if constexpr (requires { C::two_chunks(p, part, words); }) {
    C::two_chunks(p, part, words);
  } else {
#pragma unroll
    for (int t = 0; t < 2; ++t) {
#pragma unroll
      for (int w = 0; w < 4; ++w)
        words[t][w] = C::kElements == 32 ? C::bytes(p + (2 * part + t) * C::kBytes, 0, w) : C::bytes(p, 2 * part + t, w);
    }
  }
}

struct TwoScales {
  float scale[2][2], added[2][2];  // [turn][half of the chunk]
};
// What an element is: scale times the byte of two_chunks, and `added`. apart: of the chunks; left: chunks of the row from p on.
template <typename C>
__device__ __forceinline__ TwoScales two_scales(const uint8_t* p, int part, const uint32_t (&apart)[2], int left) {
  TwoScales out;
  if constexpr (requires { C::two_scales(p, part, out.scale, out.added); }) {
    C::two_scales(p, part, out.scale, out.added);
  } else {
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      const uint8_t* block = C::kElements == 32 ? p + (2 * part + t) * C::kBytes : p;
      const typename C::Head head = C::head(block, apart[t]);
      const Scales s = C::scales(block, head, C::kElements == 32 ? 0 : 2 * part + t);
      const bool there = C::kElements != 32 || 2 * part + t < left;  // what lies behind is no scale
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        out.scale[t][j] = there ? s.scale[j] : 0.0f;
        out.added[t][j] = there ? s.minimum[j] : 0.0f;
        if constexpr (C::kLess) out.added[t][j] = fmaf(-static_cast<float>(C::less(head)), out.scale[t][j], out.added[t][j]);
      }
    }
  }
  return out;
}

// One piece of the tile whose first output is `first` of n: sums of the lane's rows, over its chunks.
template <typename C, int kRows>
__device__ __forceinline__ void multiply(const GemvArgs& a, const DotRing<C>& ring, const Octet<C::kGroup>* x, int octets, int slot,
                                         int first, int n, int piece, float (&sum)[kRows][kOutputs / 8]) {
  static_assert(kOutputs == 16);
  constexpr int kGroups = 32 / C::kGroup, kBlocks = C::kElements == 32 ? 8 : 1;  // of a chunk; of an octet
  const uint8_t* lines[2] = {ring.line(slot, 0, first, n, piece), ring.line(slot, 1, first, n, piece)};
  const int lane = threadIdx.x % 32, blocks = ring.blocks_of(piece);
  const bool active = lane / 8 == ring.part;
  const Octet<C::kGroup>* at = x + piece * a.plan.stage_blocks / kBlocks;
  uint32_t b[kRows][2][2][4] = {};  // [turn][two products]; zeros where not active
#pragma unroll 1
  for (int i = 0; i < blocks; i += kBlocks, ++at) {
    int dots[kRows][2][kGroups][4] = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int t = 0; t < 2; ++t) {
#pragma unroll
        for (int j = 0; j < 2; ++j) load_where(active, shared_address(&at[r * octets].bytes[t][j][lane / 4]), b[r][t][j]);
      }
    }
    uint2 upper[2][4], lower[2][4];
    two_chunks<C>(lines[0], ring.part, upper);
    two_chunks<C>(lines[1], ring.part, lower);
#pragma unroll
    for (int w = 0; w < 4; ++w) {
#pragma unroll
      for (int t = 0; t < 2; ++t) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const uint32_t(&bytes)[4] = b[r][t][w / 2];
          if constexpr (kGroups == 1) {
            mma<C::kSigned>(dots[r][t][0], upper[t][w], lower[t][w], bytes[w % 2 * 2], bytes[w % 2 * 2 + 1]);
          } else {
            mma<C::kSigned>(dots[r][t][0], upper[t][w].x, lower[t][w].x, bytes[w % 2 * 2]);
            mma<C::kSigned>(dots[r][t][1], upper[t][w].y, lower[t][w].y, bytes[w % 2 * 2 + 1]);
          }
        }
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint32_t apart[2] = {};
      if constexpr (C::kApart) {
#pragma unroll
        for (int t = 0; t < 2; ++t) apart[t] = ring.scale(slot, h, piece, i + 2 * ring.part + t);
      }
      const TwoScales s = two_scales<C>(lines[h], ring.part, apart, blocks - i);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float2* factors = &at[r * octets].factors[ring.part][0][0];
#pragma unroll
        for (int t = 0; t < 2; ++t) {
#pragma unroll
          for (int j = 0; j < kGroups; ++j) {
            const float2 f = factors[t * kGroups + j];
            const int dot = dots[r][t][j][2 * h] * 128 + dots[r][t][j][2 * h + 1];
            sum[r][h] = fmaf(s.scale[t][j], f.x * static_cast<float>(dot), sum[r][h]);
            if constexpr (C::kMinimums || C::kLess) sum[r][h] = fmaf(s.added[t][j], f.y, sum[r][h]);
          }
        }
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) lines[h] += kBlocks * C::kBytes;
  }
}

// What the warps have of some tiles becomes outputs: one tile for every 16 threads and row.
template <int kRows>
__device__ __forceinline__ void put_together(const GemvArgs& a, int first_tile, int tiles,
                                             const float (&sums)[kDotTiles][kWarps][kRows][kOutputs],
                                             const float (&squares)[kRows][kTeamsMax * kWarps]) {
  const int i = threadIdx.x % kThreads / (kRows * kOutputs), r = threadIdx.x / kOutputs % kRows, c = threadIdx.x % kOutputs;
  if (i >= tiles || (a.gated && i % 2)) return;
  int tile = first_tile;
  for (int j = 0; j < i; ++j) tile = a.next_tile(tile);
  const int w = a.weight_of(tile), n = a.group.n[w], output = tile * kOutputs + c;
  if (output >= n) return;
  float inverse = 1.0f;  // what x lacks
  if (a.norm.weight) {
    float sum = 0.0f;
    for (int of = 0; of < a.plan.teams * kWarps; ++of) sum += squares[r][of];
    inverse = 1.0f / sqrtf(sum / static_cast<float>(a.k) + a.norm.eps);
  }
  const auto total = [&](int of, const float* bias) {
    float t = 0.0f;
#pragma unroll
    for (int other = 0; other < kWarps; ++other) t += sums[of][other][r][c];
    return fmaf(t, inverse, bias ? bias[output] : 0.0f);
  };
  float out = total(i, a.group.bias[w]);
  if (a.gated) out = silu_mul_one(out, total(i + 1, a.group.bias[1]));
  a.group.out[w][static_cast<int64_t>(r) * n + output] = out;
}

template <WeightType kType, int kRows>
__global__ void __launch_bounds__(kTeamsMax* kThreads, 1) dot_of(const __grid_constant__ GemvArgs a) {
  using C = Codes<kType>;
  using Sums = float[kDotTiles][kWarps][kRows][kOutputs];
  using Squares = float[kRows][kTeamsMax * kWarps];  // of x, by warps
  static_assert(kDotTiles * kRows * kOutputs <= kThreads);
  extern __shared__ __align__(16) uint8_t shared[];
  let_next_begin();
  const int lane = threadIdx.x % 32, warp = warp_of_team(), octets = ceil_div(a.k, kOctet);
  float4 norm_weight[2] = {};
  const bool norms = a.norm.weight != nullptr;
  if (const int at = place_of(threadIdx.x); norms && at < a.k) {  // first: behind the weights they would come when those have
#pragma unroll
    for (int h = 0; h < 2; ++h) norm_weight[h] = load_now(a.norm.weight + at + 16 * h);
  }
  auto* sums = reinterpret_cast<Sums*>(shared + a.plan.x_bytes) + 2 * team();
  auto* squares = reinterpret_cast<Squares*>(shared + a.plan.x_bytes + a.plan.teams * 2 * sizeof(Sums));
  constexpr int kSlots = dot_slots(C::kBytes);
  DotRing<C> ring(a, reinterpret_cast<uint8_t*>(squares + 1) + threadIdx.x / 32 * a.plan.ring_bytes);
  // Reads of x and of what is added to it wait behind all that is on its way to a multiprocessor, so not everything is. Slots filled
  // before a norm, of 8 layers of q4_k on an H100: one 0.742 ms, all 0.754, none 0.809.
  const int ahead = norms ? 1 : kSlots;
#pragma unroll 1
  for (int i = 0; i < ahead; ++i) ring.copy_next(i);
  wait_for_previous();  // weights are there always, x only now
  auto* x = reinterpret_cast<Octet<C::kGroup>*>(shared);
#pragma unroll 1
  for (int r = 0; r < kRows; ++r) {
    const auto put = [&](const float4(&v)[2], int i) { make_part<C::kGroup>(v, i % 4, i / 4, x + r * octets); };
    const int64_t row = static_cast<int64_t>(r) * a.k;
    if (!norms) {
      for_each_part(a.x + row, a.k, octets, put);
      continue;
    }
    const auto meanwhile = [&] {
#pragma unroll 1
      for (int i = ahead; r == 0 && i < kSlots; ++i) ring.copy_next(i);
    };
    const float* add = a.norm.add ? a.norm.add + row : nullptr;
    const float of_warp =
        warp_sum(for_each_normed(a.norm, a.x + row, add, a.norm.sum + row, norm_weight, a.k, octets, meanwhile, put));
    if (lane == 0) (*squares)[r][threadIdx.x / 32] = of_warp;
  }
  __syncthreads();
  int slot = 0, begun = 0, first_begun = first_tile(a), turn = 0;
  for (int at = first_begun, next; at < ring.tiles(); at = next) {
    next = a.next_tile(at);
    int tile = at;
    const int w = a.weight_of(tile), first = tile * kOutputs, n = a.group.n[w];
    float sum[kRows][kOutputs / 8] = {};
    for (int piece = warp; piece < a.plan.pieces; piece += kWarps) {
      ring.wait(slot);
      multiply<C>(a, ring, x, octets, slot, first, n, piece, sum);
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
    if (++begun < kDotTiles && next < ring.tiles()) continue;
    // One for some tiles: who comes here again has left the sums of the time before last.
    prefill::named_barrier_wait(1 + team(), kThreads);
    put_together<kRows>(a, first_begun, begun, sums[turn], *squares);
    first_begun = next, begun = 0, turn ^= 1;
  }
}

}  // namespace fovea::cuda::quant
