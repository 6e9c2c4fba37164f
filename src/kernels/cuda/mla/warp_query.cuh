// One query of a warp over keys that lie in shared memory, 32 at a time, in float32: a lane scores one of them, and owns some
// elements of the result.
#pragma once

#include "kernels/cuda/vec.cuh"

namespace fovea::cuda::mla {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;
inline constexpr float kLog2e = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

// Floats from a key in shared memory to the next: odd, so that lanes which read their own keys meet different banks.
constexpr int key_pitch(int floats) { return floats | 1; }

// 2^(x - max), where max is the greatest so far: 0 for -inf, also where nothing else was seen.
__device__ inline float relative_weight(float x, float max) { return x == -INFINITY ? 0.0f : exp2f(x - max); }

// The greatest score, in log2 units, and the sum of the weights relative to it.
__device__ inline float lse_of(float2 softmax) { return (softmax.x + log2f(softmax.y)) * kLn2; }
__device__ inline float inverse_of_sum(float sum) { return sum == 0.0f ? 0.0f : 1.0f / sum; }

// The splits of a row put together one by one, in their order.
struct Merge {
  float2 softmax;  // of all so far
  float old, add;  // what sums so far, and those of the split, are multiplied by

  __device__ Merge() = default;
  __device__ Merge(float2 before, float2 split) {
    softmax.x = fmaxf(before.x, split.x);
    old = relative_weight(before.x, softmax.x);
    add = relative_weight(split.x, softmax.x);
    softmax.y = fmaf(split.y, add, before.y * old);
  }
  __device__ float operator()(float before, float split) const { return fmaf(split, add, before * old); }
  __device__ float inverse() const { return inverse_of_sum(softmax.y); }
};

// kEach: elements of a result that a lane owns: lane, lane + 32, ...
template <int kEach>
struct WarpQuery {
  float max = -INFINITY, sum = 0.0f;
  float out[kEach] = {};

  // keys: [32][pitch], the first dim floats of each are multiplied by the query; values: those that are summed up, dim_v of them,
  // of the first key. `seen`: whether the query sees the lane's key; what it does not see is finite.
  __device__ void take(const float* query, const float* keys, int dim, const float* values, int dim_v, int pitch, float scale,
                       bool seen) {
    const int lane = threadIdx.x % kWarp;
    const float* mine = keys + lane * pitch;
    float even = 0.0f, odd = 0.0f;
    int e = 0;
#pragma unroll 4
    for (; e + 1 < dim; e += 2) {
      even = fmaf(query[e], mine[e], even);
      odd = fmaf(query[e + 1], mine[e + 1], odd);
    }
    if (e < dim) even = fmaf(query[e], mine[e], even);
    const float score = seen ? (even + odd) * (scale * kLog2e) : -INFINITY;
    const float greatest = fmaxf(max, warp_max(score));
    const float weight = relative_weight(score, greatest), rescale = relative_weight(max, greatest);
    max = greatest;
    sum = fmaf(sum, rescale, warp_sum(weight));
#pragma unroll
    for (int i = 0; i < kEach; ++i) out[i] *= rescale;
    for (int k = 0; k < kWarp; ++k) {
      const float w = __shfl_sync(kAllLanes, weight, k);
      const float* value = values + k * pitch + lane;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (lane + i * kWarp < dim_v) out[i] = fmaf(w, value[i * kWarp], out[i]);
      }
    }
  }

  __device__ void store(float* to, int dim_v, float factor) const {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (lane + i * kWarp < dim_v) to[lane + i * kWarp] = out[i] * factor;
    }
  }
};

}  // namespace fovea::cuda::mla
