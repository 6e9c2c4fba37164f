// Prefill attention in float32 throughout, on the ordinary cores: what Numerics::f32 and float32 caches run. K and V of
// any dtype and layout are widened on their way to shared memory, which they share one after the other.
#pragma once

#include "kernels/cuda/prefill/kernels.h"
#include "kernels/cuda/prefill/key_feed.cuh"
#include "kernels/cuda/prefill/softmax.cuh"

namespace fovea::cuda::prefill {

// A block is 16 x 16 threads. Thread (y, x) holds lanes 4y..4y+3 with the scores of keys x, x + 16, x + 32, x + 48 and,
// of the outputs, dims 4x..4x+3 of every 64.
template <int kDim>
struct F32Shared {
  static constexpr int kHeadDim = kDim;
  static constexpr int kThreads = 256;
  static constexpr int kLanes = 64;
  static constexpr int kKeys = 64;
  static constexpr int kStride = kHeadDim + 4;  // floats: 16-byte reads down a column fall into different banks
  static constexpr int kWeightStride = kKeys + 4;
  alignas(16) float q[kLanes][kStride];
  alignas(16) float kv[kKeys][kStride];
  alignas(16) float weights[kLanes][kWeightStride];
  KeyRing<kKeys> ring;
  LaneViews<kLanes> views;
  Job job;
};

template <typename Shared>
__device__ void load_f32_queries(const PrefillArgs& a, const Job& job, Shared& s) {
  const int32_t dim = a.p.kv.head_dim;
  for (int i = threadIdx.x; i < Shared::kLanes * (Shared::kHeadDim / 4); i += Shared::kThreads) {
    const int lane = i / (Shared::kHeadDim / 4), d = i % (Shared::kHeadDim / 4) * 4;
    float4 x = make_float4(0, 0, 0, 0);
    if (lane < job.lanes && d < dim) {
      x = read_activations(a.p.q, a.p.dtype, job.row_head(lane, heads_per_row(a.p)) * dim + d);
    }
    *reinterpret_cast<float4*>(&s.q[lane][d]) = x;
  }
}

// Tile `tile` of K (kValues false) or V; keys that no lane may read are zeros.
template <bool kValues, typename Shared>
__device__ void load_f32_tile(const PrefillArgs& a, int32_t tile, Shared& s) {
  const int32_t dim = a.p.kv.head_dim;
#pragma unroll 4
  for (int i = threadIdx.x; i < Shared::kKeys * (Shared::kHeadDim / 4); i += Shared::kThreads) {
    const int key = i / (Shared::kHeadDim / 4), d = i % (Shared::kHeadDim / 4) * 4;
    const int64_t row = s.ring.row[tile % s.ring.kTiles][key];
    float4 x = make_float4(0, 0, 0, 0);
    if (row >= 0 && d < dim) {
      x = kValues ? read_value_4(a.p.kv, row, s.ring.pos[tile % s.ring.kTiles][key], d) : read_key_4(a.p.kv, row, d);
    }
    *reinterpret_cast<float4*>(&s.kv[key][d]) = x;
  }
}

// scores[i][j] of lane 4y + i and key x + 16j, summed in order of dims.
template <typename Shared>
__device__ __forceinline__ void multiply_f32_keys(const Shared& s, int y, int x, float (&scores)[4][4]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) scores[i / 4][i % 4] = 0.0f;
#pragma unroll 4
  for (int d = 0; d < Shared::kHeadDim; d += 4) {
    float4 q[4], k[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      q[i] = *reinterpret_cast<const float4*>(&s.q[4 * y + i][d]);
      k[i] = *reinterpret_cast<const float4*>(&s.kv[x + 16 * i][d]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float dot = fmaf(q[i].x, k[j].x, scores[i][j]);
        dot = fmaf(q[i].y, k[j].y, dot);
        dot = fmaf(q[i].z, k[j].z, dot);
        scores[i][j] = fmaf(q[i].w, k[j].w, dot);
      }
    }
  }
}

// Scores -> weights in shared memory; rescales the outputs where a row's reference moved.
template <typename Shared, int kColumns>
__device__ __forceinline__ void weigh_f32(const ScoreScale& scale, Shared& s, int32_t tile, int y, int x, float (&scores)[4][4],
                                          RowSoftmax (&rows)[4], float (&out)[4][kColumns]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int lane = 4 * y + i;
    const int32_t lo = s.views.lo[lane] - tile * Shared::kKeys, hi = s.views.hi[lane] - tile * Shared::kKeys;
    float greatest = -INFINITY;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int key = x + 16 * j;
      float& score = scores[i][j];
      if (!scale.plain) {
        score = scale.shape(score, s.views.slope[lane], s.ring.pos[tile % s.ring.kTiles][key] - s.views.pos[lane]);
      }
      if (key < lo || key >= hi) score = -INFINITY;
      greatest = fmaxf(greatest, score);
    }
    for (int mask = 1; mask < 16; mask *= 2) greatest = fmaxf(greatest, __shfl_xor_sync(0xffffffffu, greatest, mask));
    const float correction = rows[i].follow(greatest, scale);
    const float offset = rows[i].offset(scale);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) out[i][c] *= correction;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float weight = exp2f(fmaf(scores[i][j], scale.factor, -offset));
      rows[i].add(weight);
      s.weights[lane][x + 16 * j] = weight;
    }
  }
}

template <typename Shared, int kColumns>
__device__ __forceinline__ void multiply_f32_values(const Shared& s, int y, int x, float (&out)[4][kColumns]) {
#pragma unroll 2
  for (int key = 0; key < Shared::kKeys; key += 4) {
    float4 w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = *reinterpret_cast<const float4*>(&s.weights[4 * y + i][key]);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int c = 0; c < kColumns; c += 4) {
        const float4 v = *reinterpret_cast<const float4*>(&s.kv[key + k][c * 16 + 4 * x]);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float weight = k == 0 ? w[i].x : k == 1 ? w[i].y : k == 2 ? w[i].z : w[i].w;
          out[i][c] = fmaf(weight, v.x, out[i][c]);
          out[i][c + 1] = fmaf(weight, v.y, out[i][c + 1]);
          out[i][c + 2] = fmaf(weight, v.z, out[i][c + 2]);
          out[i][c + 3] = fmaf(weight, v.w, out[i][c + 3]);
        }
      }
    }
  }
}

template <typename Shared, int kColumns>
__device__ __forceinline__ void store_f32(const PrefillArgs& a, const ScoreScale& scale, const Shared& s, int y, int x,
                                          const RowSoftmax (&rows)[4], const float (&out)[4][kColumns]) {
  const int32_t dim = a.p.kv.head_dim;
  const float v_scale = a.p.kv.v_scale != nullptr ? a.p.kv.v_scale[s.job.kv_head] : 1.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float sum = rows[i].sum;
    for (int mask = 1; mask < 16; mask *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
    const int lane = 4 * y + i;
    if (lane >= s.job.lanes) continue;
    const int64_t at = s.job.row_head(lane, heads_per_row(a.p));
    const float norm = sum == 0.0f ? 0.0f : v_scale / sum;
#pragma unroll
    for (int c = 0; c < kColumns; c += 4) {
      if (c * 16 + 4 * x >= dim) continue;
      write_activations(a.p.out, a.p.dtype, at * dim + c * 16 + 4 * x,
                        make_float4(out[i][c] * norm, out[i][c + 1] * norm, out[i][c + 2] * norm, out[i][c + 3] * norm));
    }
    if (a.p.lse != nullptr && x == 0) a.p.lse[at] = rows[i].log_sum(sum, scale);
  }
}

template <typename Shared>
__global__ void __launch_bounds__(Shared::kThreads) prefill_f32(const __grid_constant__ PrefillArgs a) {
  constexpr int kKeys = Shared::kKeys;
  auto& s = *reinterpret_cast<Shared*>(shared_memory());
  Job job;
  if (!find_job(a, blockIdx.x, blockIdx.y, job)) return;
  if (threadIdx.x == 0) s.job = job;
  const ScoreScale scale(a.p, job.kv_head);
  const int32_t first = job.span.begin / kKeys;
  const int32_t end = job.span.end > job.span.begin ? (job.span.end + kKeys - 1) / kKeys : first;
  KeyFeed<kKeys> feed;
  feed.start(a, job, first, s.ring);
  fill_lane_views(a, job, s.views, threadIdx.x, blockDim.x);
  load_f32_queries(a, job, s);
  __syncthreads();

  const int y = threadIdx.x / 16, x = threadIdx.x % 16;
  RowSoftmax rows[4];
  float out[4][Shared::kHeadDim / 16] = {};
  for (int32_t tile = first; tile < end; ++tile) {
    load_f32_tile<false>(a, tile, s);
    __syncthreads();
    float scores[4][4];
    multiply_f32_keys(s, y, x, scores);
    weigh_f32(scale, s, tile, y, x, scores, rows, out);
    __syncthreads();
    load_f32_tile<true>(a, tile, s);
    feed.feed(a, s.job, tile, s.ring);
    __syncthreads();
    multiply_f32_values(s, y, x, out);
    __syncthreads();
  }
  store_f32(a, scale, s, y, x, rows, out);
}

}  // namespace fovea::cuda::prefill
