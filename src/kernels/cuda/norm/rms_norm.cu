#include <algorithm>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/norm/rms_norm.h"
#include "kernels/cuda/vec.cuh"

namespace fovea::cuda {
namespace {

constexpr int kThreadsMax = 1024;
constexpr int kHeldMost = 4;  // float4 of a row that a thread keeps between the two passes

__device__ inline float4 operator+(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }
// As instructions: left to itself the compiler may fuse others in one kernel than in the next.
__device__ inline float squares(float4 v) { return fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, __fmul_rn(v.x, v.x)))); }
__device__ inline float4 scaled(float4 v, float f, float4 w) {
  return {v.x * f * w.x, v.y * f * w.y, v.z * f * w.z, v.w * f * w.w};
}

__device__ inline int64_t row_from(const RmsNormParams& p) {
  return (p.row_index ? p.row_index[blockIdx.x] : blockIdx.x) * static_cast<int64_t>(p.dim);
}
__device__ inline float inverse_rms(const RmsNormParams& p, float sum) { return 1.0f / sqrtf(sum / p.dim + p.eps); }

// The row's sum of squares, in every thread and in one order whatever their number, which follows that of the rows: of 128 elements,
// as a warp holds them, and then of these sums.
template <int kHeld>
__device__ float sum_of_squares(const float4 (&held)[kHeld], int count) {
  __shared__ float sums[kHeld * 32];
  const int lane = threadIdx.x % 32, all = (count + 31) / 32;
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int at = (j * blockDim.x + threadIdx.x) / 32;
    if (at >= all) break;
    const float sum = warp_sum(squares(held[j]));
    if (lane == 0) sums[at] = sum;
  }
  __syncthreads();
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < kHeld; ++j) sum += 32 * j + lane < all ? sums[32 * j + lane] : 0.0f;
  return warp_sum(sum);
}

// One block a row, which lies in registers between the sum and the scaling: dim a multiple of 4, at most
// 4 * kHeld * threads, and every address a multiple of 16.
template <int kHeld>
__global__ void __launch_bounds__(kThreadsMax) rms_norm_kernel(RmsNormParams p) {
  let_next_begin();
  const int count = p.dim / 4;
  float4 held[kHeld], scale[kHeld];
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {  // no kernel writes it, and no cache has it: on its way while the one before still runs
    const int i = j * blockDim.x + threadIdx.x;
    if (i < count && p.out) scale[j] = load_now(p.weight + 4 * i);
  }
  wait_for_previous();
  const int64_t from = row_from(p);
  const auto* x = reinterpret_cast<const float4*>(p.x + from);
  auto* to = reinterpret_cast<float4*>((p.sum ? p.sum : p.x) + from);
  const auto* add = reinterpret_cast<const float4*>(p.add ? p.add + from : nullptr);
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int i = j * blockDim.x + threadIdx.x;
    held[j] = {};
    if (i >= count) continue;
    held[j] = add ? x[i] + add[i] : x[i];
    if (add && !p.row_index) to[i] = held[j];
  }
  if (!p.out) return;
  const float inverse = inverse_rms(p, sum_of_squares(held, count));
  auto* out = reinterpret_cast<float4*>(p.out + blockIdx.x * static_cast<int64_t>(p.dim));
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int i = j * blockDim.x + threadIdx.x;
    if (i >= count) break;
    out[i] = scaled(held[j], inverse, scale[j]);
  }
}

// Any dim and any address.
__global__ void __launch_bounds__(kThreadsMax) rms_norm_any_kernel(RmsNormParams p) {
  let_next_begin();
  wait_for_previous();
  const int64_t from = row_from(p);
  const float* x = p.x + from;
  float* to = p.add && !p.row_index ? (p.sum ? p.sum : p.x) + from : nullptr;
  const auto value = [&](int i) { return to ? to[i] : p.add ? x[i] + p.add[from + i] : x[i]; };
  float sum = 0.0f;
  for (int i = threadIdx.x; i < p.dim; i += blockDim.x) {
    if (to) to[i] = x[i] + p.add[from + i];
    sum += value(i) * value(i);
  }
  if (!p.out) return;
  const float inverse = inverse_rms(p, block_sum(sum));
  float* out = p.out + blockIdx.x * static_cast<int64_t>(p.dim);
  for (int i = threadIdx.x; i < p.dim; i += blockDim.x) out[i] = value(i) * inverse * p.weight[i];
}

}  // namespace

void rms_norm(const RmsNormParams& p, const Queue& queue) {
  if (p.rows == 0) return;
  const bool held = p.dim % 4 == 0 && p.dim <= 4 * kHeldMost * kThreadsMax && aligned16(p.x) && aligned16(p.add) &&
                    aligned16(p.sum) && aligned16(p.weight) && aligned16(p.out);
  const auto run = [&](auto* kernel, int of_thread) {
    launch("rms_norm", kernel, p.rows, std::clamp(ceil_div(ceil_div(p.dim, of_thread), 32) * 32, 32, kThreadsMax), queue, p);
  };
  if (!held) return run(&rms_norm_any_kernel, 4);
  // Many rows: four float4 a thread, so that more rows share a multiprocessor. Few: as many threads as can share a row, with few
  // registers, or they find no place before the product ahead has left a multiprocessor.
  if (p.rows >= 256 || p.dim > 8 * kThreadsMax) return run(&rms_norm_kernel<kHeldMost>, p.rows >= 256 ? 4 * kHeldMost : 4);
  run(p.dim > 4 * kThreadsMax ? &rms_norm_kernel<2> : &rms_norm_kernel<1>, 4);
}

}  // namespace fovea::cuda
