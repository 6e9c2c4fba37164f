// One row over weights of 8 bits with scales apart, float32 activations: rows begin on multiples of 16, so that weights go to
// registers straight, 16 bytes a lane, as in linear/gemv.cu. A warp has kCols outputs, which share what it reads of x.
#include "kernels/cuda/quant/bytes_gemv.h"

#include <cuda_fp8.h>

#include "kernels/cuda/linear/weight_group.cuh"
#include "kernels/cuda/vec.cuh"

namespace fovea::cuda::quant {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kStride = 32 * 16;  // of k that a warp reads at once

struct BytesArgs {
  WeightGroup group;
  const float* scales[WeightGroup::kMax];
  int scales_per_row, group_cols;  // group_cols >= k: one scale a row
  const float* x;
  int k;
};

template <WeightType kType>
__device__ __forceinline__ float4 widen_4(uint32_t bytes) {
  if constexpr (kType == WeightType::fp8_e4m3) {
    const __half2_raw low = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(bytes & 0xffff), __NV_E4M3);
    const __half2_raw high = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(bytes >> 16), __NV_E4M3);
    const float2 a = __half22float2(__half2(low)), b = __half22float2(__half2(high));
    return {a.x, a.y, b.x, b.y};
  } else {  // by the mantissa of 2^23
    const uint32_t from_zero = bytes ^ 0x80808080;
    const auto one = [&](int i) { return __uint_as_float(__byte_perm(from_zero, 0x4b000000, 0x7540 + i)) - (0x1p23f + 128.0f); };
    return {one(0), one(1), one(2), one(3)};
  }
}

__device__ __forceinline__ float dot(float4 a, float4 b, float sum) {
  return fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, sum))));
}

template <WeightType kType, int kCols, int kSteps>
__global__ void __launch_bounds__(kThreads) bytes_gemv_kernel(const __grid_constant__ BytesArgs a) {
  let_next_begin();
  const int lane = threadIdx.x % 32;
  int tile = blockIdx.x * kWarps + threadIdx.x / 32;
  if (tile >= a.group.end_tile[a.group.count - 1]) return;
  const int w = a.group.find(tile), first = tile * kCols, n = a.group.n[w];
  const bool one_scale = a.group_cols >= a.k;
  const uint8_t* lines[kCols];
  const float* scales[kCols];
#pragma unroll
  for (int c = 0; c < kCols; ++c) {
    const int64_t line = min(first + c, n - 1);
    lines[c] = static_cast<const uint8_t*>(a.group.w[w]) + line * a.k;
    scales[c] = a.scales[w] + line * a.scales_per_row;
  }
  float sum[kCols] = {};
  for (int base = lane * 16; base < a.k; base += kSteps * kStride) {
    uint4 read[kSteps][kCols];
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int at = base + s * kStride;
#pragma unroll
      for (int c = 0; c < kCols; ++c) read[s][c] = at < a.k ? load_streaming(lines[c] + at) : uint4{};
    }
    wait_for_previous();  // weights are there always, x only now
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int at = base + s * kStride;
      if (at >= a.k) continue;
      float4 x[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) x[j] = *reinterpret_cast<const float4*>(a.x + at + 4 * j);
#pragma unroll
      for (int c = 0; c < kCols; ++c) {
        const uint4 v = read[s][c];
        const float4 wide[4] = {widen_4<kType>(v.x), widen_4<kType>(v.y), widen_4<kType>(v.z), widen_4<kType>(v.w)};
        const float scale = one_scale ? 1.0f : scales[c][at / a.group_cols];
        float part = 0.0f;
#pragma unroll
        for (int j = 0; j < 4; ++j) part = dot(x[j], wide[j], part);
        sum[c] = fmaf(part, scale, sum[c]);
      }
    }
  }
#pragma unroll
  for (int c = 0; c < kCols; ++c) {
    float total = warp_sum(sum[c]);
    if (lane != 0 || first + c >= n) continue;
    if (one_scale) total *= scales[c][0];
    const float* bias = a.group.bias[w];
    a.group.out[w][first + c] = bias ? total + bias[first + c] : total;
  }
}

template <WeightType kType>
void launch_type(BytesArgs& a, const Queue& queue) {
  int outputs = 0;
  for (int i = 0; i < a.group.count; ++i) outputs += a.group.n[i];
  const bool many = outputs >= 8192;  // fewer need more warps
  const int tiles = a.group.number_tiles(many ? 4 : 2);
  const auto kernel = many ? &bytes_gemv_kernel<kType, 4, 2> : &bytes_gemv_kernel<kType, 2, 4>;
  launch("bytes gemv", kernel, ceil_div(tiles, kWarps), kThreads, queue, a);
}

}  // namespace

void bytes_gemv(const LinearParams& p, const Queue& queue) {
  const WeightView& w = p.weights[0].w;
  BytesArgs a{};
  for (int i = 0; i < p.count; ++i) {
    if (p.weights[i].n() == 0) continue;
    a.scales[a.group.count] = static_cast<const float*>(p.weights[i].w.scales);
    a.group.add(p.weights[i]);
  }
  if (a.group.count == 0) return;
  a.scales_per_row = static_cast<int>(w.scales_per_row());
  a.group_cols = w.group, a.x = p.x, a.k = p.k;
  w.type == WeightType::fp8_e4m3 ? launch_type<WeightType::fp8_e4m3>(a, queue) : launch_type<WeightType::int8>(a, queue);
}

}  // namespace fovea::cuda::quant
