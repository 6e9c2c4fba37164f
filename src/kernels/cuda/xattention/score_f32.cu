// Scores of cells in float32 throughout, on the ordinary cores, over a cache of any type and layout.
#include "kernels/cuda/xattention/cells.cuh"

namespace fovea::cuda::xattention {
namespace {

// 16 x 16 threads; thread (y, x) holds lanes 4y..4y+3 with cells x, x + 16, x + 32, x + 48.
struct Shared {
  static constexpr int kThreads = 256, kLanes = 64, kCells = 64;
  static constexpr int kStride = kStep + 4;  // floats: 16-byte reads down a column fall into different banks
  static constexpr int kPitch = kCells + 8;
  alignas(16) float q[kLanes][kStride];
  alignas(16) float k[kCells][kStride];
  alignas(16) float scores[kLanes][kPitch];
  KeyBases<kCells> bases;
  LaneViews<kLanes> lanes;
};

__device__ void load_step(const PassArgs& a, const float* queries, int32_t first, int32_t len, int32_t step, Shared& s) {
  for (int i = threadIdx.x; i < Shared::kLanes * (kStep / 4); i += Shared::kThreads) {
    const int row = i / (kStep / 4), e = i % (kStep / 4) * 4;
    *reinterpret_cast<float4*>(&s.q[row][e]) = *reinterpret_cast<const float4*>(queries + row * kStep + e);
  }
  for (int i = threadIdx.x; i < Shared::kCells * (kStep / 4); i += Shared::kThreads) {
    const int row = i / (kStep / 4), e = i % (kStep / 4) * 4;
    const DepthElement x(a, step, e);
    float4 key = make_float4(0, 0, 0, 0);
    if (x.there && (first + row) * a.p.stride + x.s < len) {
      key = prefill::read_4(a.p.kv.k, a.p.kv.dtype, s.bases.at[x.s / tokens_of_part(a)][row] + offset_in_part(a, x), 1);
    }
    *reinterpret_cast<float4*>(&s.k[row][e]) = key;
  }
}

__device__ __forceinline__ void multiply_step(const Shared& s, int y, int x, float (&acc)[4][4]) {
#pragma unroll 4
  for (int e = 0; e < kStep; e += 4) {
    float4 q[4], k[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      q[i] = *reinterpret_cast<const float4*>(&s.q[4 * y + i][e]);
      k[i] = *reinterpret_cast<const float4*>(&s.k[x + 16 * i][e]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float dot = fmaf(q[i].x, k[j].x, acc[i][j]);
        dot = fmaf(q[i].y, k[j].y, dot);
        dot = fmaf(q[i].z, k[j].z, dot);
        acc[i][j] = fmaf(q[i].w, k[j].w, dot);
      }
    }
  }
}

__global__ void __launch_bounds__(Shared::kThreads) score_f32(const __grid_constant__ PassArgs a) {
  auto& s = *reinterpret_cast<Shared*>(prefill::shared_memory());
  const int32_t kv_head = blockIdx.z, lane = blockIdx.y * Shared::kLanes, first = blockIdx.x * Shared::kCells;
  const int y = threadIdx.x / 16, x = threadIdx.x % 16;
  const float scale = score_scale(a, kv_head);
  each_sequence(a, lane, Shared::kLanes, [&](int32_t tile, int32_t end, const Place& last) {
    if (first * a.p.stride >= last.len) return;
    __syncthreads();  // the sequence before is done with everything
    fill_lanes(a, kv_head, lane, tile, end, s.lanes);
    fill_bases(a, kv_head, last.seq, first, last.len, Shared::kThreads, s.bases);
    float acc[4][4] = {};
    for (int32_t step = 0; step < 2 * a.half_steps; ++step) {
      __syncthreads();
      if (step == a.half_steps) {
        for (int i = 0; i < 4; ++i) {
          for (int j = 0; j < 4; ++j) {
            if (s.lanes.cell[4 * y + i] == first + x + 16 * j) s.lanes.half_sum[4 * y + i] = acc[i][j] * scale;
          }
        }
      }
      load_step(a, queries_of<float>(a, kv_head, blockIdx.y, step), first, last.len, step, s);
      __syncthreads();
      multiply_step(s, y, x, acc);
    }
    for (int i = 0; i < 4; ++i) {
      for (int j = 0; j < 4; ++j) s.scores[4 * y + i][x + 16 * j] = acc[i][j] * scale;
    }
    __syncthreads();
    weigh<Shared::kLanes, Shared::kCells, Shared::kPitch>(a, s.lanes, s.scores[0], first, last.len);
  });
}

}  // namespace

ScoreEntry f32_kernel() {
  return {choose(Numerics::f32, DType::f32, false),
          true,
          {reinterpret_cast<const void*>(&score_f32), Shared::kThreads, static_cast<int32_t>(sizeof(Shared))}};
}

}  // namespace fovea::cuda::xattention
