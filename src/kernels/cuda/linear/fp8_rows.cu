#include <cuda_fp8.h>

#include "base/check.h"
#include "kernels/cuda/elementwise/silu.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/linear/fp8_rows.h"
#include "kernels/cuda/vec.cuh"

namespace fovea::cuda {
namespace {

constexpr int kHeld = 8;             // float4 of a row that a thread keeps
static_assert(kFp8Group == 4 * 32);  // what a warp holds as one float4 a lane
static_assert(kFp8DepthMax == 4 * kHeld * 1024);
constexpr float kLargest = 448.0f;
constexpr float kScaleMin = 0x1p-126f;  // whose inverse is finite, and which no arithmetic flushes

// The float4 of row blockIdx.x that fall to this thread: the j-th is held[j], of columns from 4 (j blockDim.x + threadIdx.x) on.
struct AsTheyLie {
  const float* x;

  __device__ void load(float4 (&held)[kHeld], int32_t k) const {
    const auto* from = reinterpret_cast<const float4*>(x + blockIdx.x * static_cast<int64_t>(k));
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int i = j * blockDim.x + threadIdx.x;
      held[j] = i < k / 4 ? from[i] : float4{};
    }
  }
};

struct Activated {
  const float* gate;
  const float* up;

  __device__ void load(float4 (&held)[kHeld], int32_t k) const {
    const int64_t row = blockIdx.x * static_cast<int64_t>(k);
    AsTheyLie{gate}.load(held, k);
    const auto* from = reinterpret_cast<const float4*>(up + row);
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int i = j * blockDim.x + threadIdx.x;
      if (i >= k / 4) break;
      const float4 u = from[i];
      held[j] = {silu_mul_one(held[j].x, u.x), silu_mul_one(held[j].y, u.y), silu_mul_one(held[j].z, u.z),
                 silu_mul_one(held[j].w, u.w)};
    }
  }
};

struct Normed {
  RmsNormParams p;

  __device__ void load(float4 (&held)[kHeld], int32_t k) const {
    AsTheyLie{p.x}.load(held, k);
    const int64_t row = blockIdx.x * static_cast<int64_t>(k);
    auto* to = reinterpret_cast<float4*>((p.sum ? p.sum : p.x) + row);
    const auto* add = reinterpret_cast<const float4*>(p.add ? p.add + row : nullptr);
    const auto* weight = reinterpret_cast<const float4*>(p.weight);
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int i = j * blockDim.x + threadIdx.x;
      if (i >= k / 4) break;
      if (add) {
        const float4 a = add[i];
        held[j] = {held[j].x + a.x, held[j].y + a.y, held[j].z + a.z, held[j].w + a.w};
        to[i] = held[j];
      }
      sum += held[j].x * held[j].x + held[j].y * held[j].y + held[j].z * held[j].z + held[j].w * held[j].w;
    }
    const float inverse = 1.0f / sqrtf(block_sum(sum) / p.dim + p.eps);
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int i = j * blockDim.x + threadIdx.x;
      if (i >= k / 4) break;
      const float4 w = weight[i];
      held[j] = {held[j].x * inverse * w.x, held[j].y * inverse * w.y, held[j].z * inverse * w.z, held[j].w * inverse * w.w};
    }
  }
};

// fmaxf passes NaN by: the row's other numbers keep their scale.
__device__ inline float largest(float4 v) { return fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))); }

__device__ inline float scale_of(float largest) { return fmaxf(__fdiv_rn(largest, kLargest), kScaleMin); }

// Four numbers, the first in the lowest byte; rounded to nearest even, saturating; NaN stays.
__device__ inline uint32_t codes_of(float4 v, float inverse) {
  const auto pair = [](float a, float b) -> uint32_t {
    return __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3);
  };
  return pair(v.x * inverse, v.y * inverse) | pair(v.z * inverse, v.w * inverse) << 16;
}

__device__ inline void write_scale(const Fp8Rows& out, int64_t row, int64_t rows, int64_t group, float scale) {
  if (row < out.scaled_rows) out.scales[group * out.scaled_rows + row] = scale;
  const int64_t last = row - (rows - kFp8RowsStep);
  if (out.last_scales && last >= 0) out.last_scales[group * kFp8RowsStep + last] = scale;
}

// One block a row. By groups every warp's j-th float4 are one: nothing is exchanged beyond it.
template <typename Source, bool kByGroups>
__global__ void __launch_bounds__(1024) fp8_rows_kernel(Source source, int32_t k, Fp8Rows out) {
  let_next_begin();
  wait_for_previous();
  float4 held[kHeld];
  source.load(held, k);
  const int64_t row = blockIdx.x, rows = gridDim.x;
  auto* codes = reinterpret_cast<uint32_t*>(out.codes + row * k);
  float inverse = 0.0f;
  if constexpr (!kByGroups) {
    float most = 0.0f;
#pragma unroll
    for (int j = 0; j < kHeld; ++j) most = fmaxf(most, largest(held[j]));
    const float scale = scale_of(block_max(most));
    inverse = __frcp_rn(scale);
    if (threadIdx.x == 0) write_scale(out, row, rows, 0, scale);
  }
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int i = j * blockDim.x + threadIdx.x;
    if constexpr (kByGroups) {
      const float scale = scale_of(warp_max(largest(held[j])));
      inverse = __frcp_rn(scale);
      if (i % 32 == 0 && i < k / 4) write_scale(out, row, rows, i / 32, scale);
    }
    if (i < k / 4) codes[i] = codes_of(held[j], inverse);
  }
}

template <typename Source>
void launch_rows(const Source& source, int32_t rows, int32_t k, const Fp8Rows& out, const Queue& queue) {
  if (rows == 0) return;
  FOVEA_CHECK(k % 4 == 0 && k <= kFp8DepthMax && (out.group == k || out.group == kFp8Group));
  const int threads = ceil_div(ceil_div(k, 4 * kHeld), 32) * 32;
  const auto kernel = out.group == k ? &fp8_rows_kernel<Source, false> : &fp8_rows_kernel<Source, true>;
  launch("fp8_rows", kernel, static_cast<unsigned>(rows), static_cast<unsigned>(threads), queue, source, k, out);
}

constexpr int kThreads = 256;

__global__ void add_bias_kernel(const float* bias, float* out, int64_t count, int32_t n) {
  let_next_begin();
  wait_for_previous();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) out[i] += bias[i % n];
}

__global__ void block_scales_kernel(const float* from, int64_t groups, int64_t stride, int64_t count, float* to) {
  let_next_begin();
  wait_for_previous();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t block = i / stride, group = i % stride;
  if (i < count) to[i] = group < groups ? from[block * kFp8Group * groups + group] : 0.0f;
}

__global__ void find_unlike_kernel(const float* scales, int64_t count, int64_t groups, int32_t* flag) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count && scales[i] != scales[i / (kFp8Group * groups) * (kFp8Group * groups) + i % groups]) *flag = 1;
}

}  // namespace

void fp8_rows(const float* x, int32_t rows, int32_t k, const Fp8Rows& out, const Queue& queue) {
  launch_rows(AsTheyLie{x}, rows, k, out, queue);
}

void fp8_rows_of(const SiluMulParams& p, const Fp8Rows& out, const Queue& queue) {
  launch_rows(Activated{p.gate, p.up}, p.rows, p.dim, out, queue);
}

void fp8_rows_of(const RmsNormParams& p, const Fp8Rows& out, const Queue& queue) {
  FOVEA_CHECK(!p.row_index);
  launch_rows(Normed{p}, p.rows, p.dim, out, queue);
}

void block_scales(const float* from, int64_t n, int64_t groups, float* to, const Queue& queue) {
  const int64_t stride = ceil_div<int64_t>(groups, 4) * 4, count = ceil_div<int64_t>(n, kFp8Group) * stride;
  launch("block_scales", block_scales_kernel, static_cast<unsigned>(ceil_div<int64_t>(count, kThreads)), kThreads, queue, from,
         groups, stride, count, to);
}

bool are_of_blocks(const float* scales, int64_t n, int64_t groups, int32_t* flag, const Queue& queue) {
  int32_t unlike = 0;
  check_call("fp8 scales", cudaMemsetAsync(flag, 0, sizeof *flag, queue.stream));
  const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(n * groups, kThreads));
  find_unlike_kernel<<<blocks, kThreads, 0, queue.stream>>>(scales, n * groups, groups, flag);
  check_launch("find_unlike");
  check_call("fp8 scales", cudaMemcpyAsync(&unlike, flag, sizeof unlike, cudaMemcpyDeviceToHost, queue.stream));
  check_call("fp8 scales", cudaStreamSynchronize(queue.stream));
  return unlike == 0;
}

void add_bias(const float* bias, float* out, int32_t rows, int32_t n, const Queue& queue) {
  const int64_t count = static_cast<int64_t>(rows) * n;
  launch("add_bias", add_bias_kernel, static_cast<unsigned>(ceil_div<int64_t>(count, kThreads)), kThreads, queue, bias, out, count,
         n);
}

}  // namespace fovea::cuda
