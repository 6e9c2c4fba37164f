// One or two rows over weights of 8 bits with scales apart. Weights go to registers straight, 16 bytes a lane, as in linear/gemv.cu, and
// from there to the tensor cores as 16-bit floats, which hold them; x is two such floats a number, high and low, in columns of their own
// of the product's eight. A thread block has 16 outputs (of a gated call 8 of each weight), whose columns its warps share: it is short,
// so that all multiprocessors end together, and has little code and shared memory, so that the next launch begins early.
#include "kernels/cuda/quant/bytes_gemv.h"

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <bit>

#include "kernels/cuda/elementwise/silu.cuh"
#include "kernels/cuda/linear/weight_group.cuh"
#include "kernels/cuda/quant/config.h"
#include "kernels/cuda/quant/magnitude.cuh"
#include "kernels/cuda/vec.cuh"

namespace fovea::cuda::quant {
namespace {

constexpr int kSteps = kBytesColumns / 64;  // of a piece: a lane's 16 bytes of two rows
constexpr int kHalfTile = kOutputs / 2;
constexpr int kRowsMax = 2;

struct BytesArgs {
  WeightGroup group;
  const float* scales[WeightGroup::kMax];
  int scales_per_row, group_shift;  // columns that share a scale, as a power of two
  const float* x;
  int k, pieces;
  bool gated;
};

__device__ __forceinline__ uint32_t bits(__half2 v) { return *reinterpret_cast<const uint32_t*>(&v); }

// Four bytes as 16-bit floats.
template <WeightType kType>
__device__ __forceinline__ uint2 widen_4(uint32_t x) {
  if constexpr (kType == WeightType::fp8_e4m3) {
    __nv_fp8x2_storage_t low, high;
    asm("mov.b32 {%0, %1}, %2;" : "=h"(low), "=h"(high) : "r"(x));
    return {bits(__nv_cvt_fp8x2_to_halfraw2(low, __NV_E4M3)), bits(__nv_cvt_fp8x2_to_halfraw2(high, __NV_E4M3))};
  } else {  // by the mantissa of 2^10
    const uint32_t from_zero = x ^ 0x80808080;
    const auto two = [&](uint32_t order) {
      const uint32_t both = __byte_perm(from_zero, 0x64646464, order);
      return bits(__hsub2(*reinterpret_cast<const __half2*>(&both), __half2half2(__ushort_as_half(0x6480))));  // 2^10 + 128
    };
    return {two(0x4140), two(0x4342)};
  }
}

__device__ __forceinline__ void mma_halves(float (&sum)[4], uint2 upper, uint2 lower, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(upper.x), "r"(lower.x), "r"(upper.y), "r"(lower.y), "r"(b0), "r"(b1));
}

// load_streaming where `there`; else `to` stays as it is. The L2 cache fetches 256 bytes at once: 4 % faster.
__device__ __forceinline__ void load_where(bool there, const uint8_t* from, uint4& to) {
  asm volatile(
      "{\n"
      ".reg .pred there;\n"
      "setp.ne.u32 there, %4, 0;\n"
      "@there ld.global.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%5];\n"
      "}\n"
      : "+r"(to.x), "+r"(to.y), "+r"(to.z), "+r"(to.w)
      : "r"(static_cast<uint32_t>(there)), "l"(from));
}

// A piece of a row of x: numbers that add up to it, times a power of two. What is unused keeps lanes of both columns on other banks.
struct XPiece {
  uint4 high[kBytesColumns / 8], unused, low[kBytesColumns / 8], unused_too;
};

// A warp's lanes have eight numbers each. Returns what those of `to` are times of: they were divided by it, so that none is too large
// for a 16-bit float and few too small.
__device__ __forceinline__ float put_x(const float4 (&x)[2], int lane, XPiece& to) {
  const uint32_t most = __float_as_uint(greater(magnitude(x[0]), magnitude(x[1])));
  const uint32_t exponent = __reduce_max_sync(0xffffffffu, most) & 0x7f800000u;
  constexpr uint32_t kUpTo = 14 << 23;  // numbers below 2^15
  float step = __uint_as_float(exponent - kUpTo), inverse = __uint_as_float((254u << 23) + kUpTo - exponent);
  if (exponent < 0x07800000u) step = inverse = 0.0f;   // 2^-112: its inverse would not be finite
  if (exponent == 0x7f800000u) step = inverse = 1.0f;  // infinity or NaN stays none
  const float f[8] = {x[0].x, x[0].y, x[0].z, x[0].w, x[1].x, x[1].y, x[1].z, x[1].w};
  uint32_t high[4], low[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float a = f[2 * i] * inverse, b = f[2 * i + 1] * inverse;
    const __half2 both = __floats2half2_rn(a, b);
    const float2 rounded = __half22float2(both);
    high[i] = bits(both), low[i] = bits(__floats2half2_rn(a - rounded.x, b - rounded.y));
  }
  to.high[lane] = {high[0], high[1], high[2], high[3]};
  to.low[lane] = {low[0], low[1], low[2], low[3]};
  return step;
}

// A piece's products, of which a lane has those of its rows of both halves of the tile. from: x of the lane's column and part.
template <WeightType kType>
__device__ __forceinline__ void multiply(const uint4 (&read)[kSteps][2], const uint4* from, const float (&scale)[2], float step,
                                         int lane, float (&sum)[2]) {
  float dots[2][2][4] = {};  // [half of the piece][two chains]
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const uint4 b0 = from[8 * i], b1 = from[8 * i + 1], up = read[i][0], low = read[i][1];
    float(&chains)[2][4] = dots[i / (kSteps / 2)];
    mma_halves(chains[0], widen_4<kType>(up.x), widen_4<kType>(low.x), b0.x, b0.y);
    mma_halves(chains[1], widen_4<kType>(up.y), widen_4<kType>(low.y), b0.z, b0.w);
    mma_halves(chains[0], widen_4<kType>(up.z), widen_4<kType>(low.z), b1.x, b1.y);
    mma_halves(chains[1], widen_4<kType>(up.w), widen_4<kType>(low.w), b1.z, b1.w);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float(&chains)[2][4] = dots[half];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float s = __shfl_sync(0xffffffffu, scale[h], (lane & 28) + half) * step;
      sum[h] = fmaf(s, chains[0][2 * h] + chains[1][2 * h] + (chains[0][2 * h + 1] + chains[1][2 * h + 1]), sum[h]);
    }
  }
}

// A warp makes outputs of what all have. n: of weight w. (Read here, it costs registers that spill.)
template <int kRows>
__device__ __forceinline__ void put_outputs(const BytesArgs& a, int w, int n, int tile, int lane,
                                            const float (&sums)[kRows][kBytesWarpsMax][kOutputs]) {
  const int r = lane / kOutputs, c = lane % kOutputs, of = a.gated ? c / kHalfTile : w;
  const int output = a.gated ? tile * kHalfTile + c % kHalfTile : tile * kOutputs + c;
  const bool there = r < kRows && output < n;
  float out = there && a.group.bias[of] ? a.group.bias[of][output] : 0.0f;
#pragma unroll
  for (int warp = 0; warp < kBytesWarpsMax; ++warp) out += sums[r % kRows][warp][c];
  if (a.gated) out = silu_mul_one(out, __shfl_down_sync(0xffffffffu, out, kHalfTile));
  if (there && !(a.gated && of == 1)) a.group.out[of][static_cast<int64_t>(r) * n + output] = out;
}

template <WeightType kType, int kRows>
__global__ void __launch_bounds__(32 * kBytesWarpsMax, 2) bytes_gemv_kernel(const __grid_constant__ BytesArgs a) {
  static_assert(kRows <= kRowsMax && kRows * kOutputs <= 32);
  __shared__ XPiece x_pieces[kBytesWarpsMax][kRows];
  __shared__ float sums[kRows][kBytesWarpsMax][kOutputs];
  let_next_begin();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32, row = lane / 4, part = lane % 4;
  int tile = blockIdx.x;
  const int w = a.gated ? 0 : a.group.find(tile), n = a.group.n[w];

  // Of the upper and the lower half of the tile: where the lane's row is, from the first of the warp's pieces on. The last piece of a
  // row begins early enough to be whole: x is zero where the one before was.
  const auto begin = [&](int piece) { return min(piece * kBytesColumns, a.k - kBytesColumns); };
  int at = begin(warp);
  const uint8_t* lines[2];
  const float* scales[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int of = a.gated ? h : w;
    const int64_t line = min(a.gated ? tile * kHalfTile + row : tile * kOutputs + row + kHalfTile * h, n - 1);
    lines[h] = static_cast<const uint8_t*>(a.group.w[of]) + line * a.k + at + 16 * part;
    scales[h] = a.scales[of] + line * a.scales_per_row;
  }
  uint4 read[kSteps][2];
  float scale[2] = {};  // parts 0 and 1 have those of the piece's halves
  const auto load = [&](bool there) {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) load_where(there, lines[h] + 64 * i, read[i][h]);
    }
    if (!there || part > 1) return;
#pragma unroll
    for (int h = 0; h < 2; ++h) scale[h] = scales[h][(at + 128 * part) >> a.group_shift];
  };
  load(true);
  for (int i = threadIdx.x; i < kRows * kOutputs * (kBytesWarpsMax - warps); i += blockDim.x)
    sums[i / kOutputs % kRows][warps + i / kOutputs / kRows][i % kOutputs] = 0.0f;
  wait_for_previous();  // weights are there always, x only now

  XPiece* own = x_pieces[warp];
  const int column = lane / 4 % (2 * kRows);  // nobody asks for the product's others
  const uint4* from = (column % 2 ? own[column / 2].low : own[column / 2].high) + 2 * part;
  float sum[2] = {};  // of row `part` of x
#pragma unroll 1
  for (int piece = warp; piece < a.pieces; piece += warps) {
    float step = 0.0f;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int first = at + 8 * lane;
      const auto* x_from = reinterpret_cast<const float4*>(a.x + static_cast<int64_t>(r) * a.k + first);
      float4 x[2] = {};
      if (first >= piece * kBytesColumns) x[0] = x_from[0], x[1] = x_from[1];
      const float s = put_x(x, lane, own[r]);
      if (part == r) step = s;
    }
    __syncwarp();
    multiply<kType>(read, from, scale, step, lane, sum);
    const int further = begin(piece + warps) - at;
    at += further, lines[0] += further, lines[1] += further;
    load(piece + warps < a.pieces);
    __syncwarp();
  }
  if (part < kRows) {
#pragma unroll
    for (int h = 0; h < 2; ++h) sums[part][warp][row + kHalfTile * h] = sum[h];
  }
  __syncthreads();
  if (warp == 0) put_outputs<kRows>(a, w, n, tile, lane, sums);
}

template <WeightType kType>
void launch_type(const BytesArgs& a, int rows, int tiles, int warps, const Queue& queue) {
  launch("bytes gemv", rows == 1 ? &bytes_gemv_kernel<kType, 1> : &bytes_gemv_kernel<kType, 2>, tiles, 32 * warps, queue, a);
}

}  // namespace

bool takes_bytes(const LinearParams& p, const WeightView& w) {
  if (weight_format(w.type).block != 1 || p.rows > kRowsMax || p.k < kBytesColumns) return false;
  const bool by_halves = w.group >= kBytesColumns / 2 && std::has_single_bit(static_cast<uint32_t>(w.group));
  return w.group >= p.k || (by_halves && p.k % (kBytesColumns / 2) == 0);
}

bool bytes_gemv(const LinearParams& p, const Queue& queue) {
  const WeightView& w = p.weights[0].w;
  BytesArgs a{};
  for (int i = 0; i < p.count; ++i) {
    if (p.weights[i].n() == 0) continue;
    a.scales[a.group.count] = static_cast<const float*>(p.weights[i].w.scales);
    a.group.add(p.weights[i]);
  }
  if (a.group.count == 0) return false;
  a.scales_per_row = static_cast<int>(w.scales_per_row());
  a.group_shift = w.group >= p.k ? 31 : std::countr_zero(static_cast<uint32_t>(w.group));
  a.x = p.x, a.k = p.k;
  a.gated = p.gated && a.group.count == 2;
  const BytesPlan plan = plan_bytes(p.k);
  a.pieces = plan.pieces;
  const int tiles = a.gated ? ceil_div(a.group.n[0], kHalfTile) : a.group.number_tiles(kOutputs);
  const auto launch_it = w.type == WeightType::fp8_e4m3 ? &launch_type<WeightType::fp8_e4m3> : &launch_type<WeightType::int8>;
  launch_it(a, p.rows, tiles, plan.warps, queue);
  return a.gated;
}

}  // namespace fovea::cuda::quant
