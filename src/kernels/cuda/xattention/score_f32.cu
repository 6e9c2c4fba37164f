// Scores of cells in float32 throughout, on the ordinary cores, over a cache of any type and layout.
#include "kernels/cuda/xattention/fma_product.cuh"

namespace fovea::cuda::xattention {
namespace {

using Product = FmaProduct;
constexpr int kLanes = Product::kRows, kCells = Product::kColumns, kThreads = Product::kThreads;
constexpr int kPitch = kCells + 8;

struct Shared {
  Product::Stage stage;
  alignas(16) float scores[kLanes][kPitch];
  KeyBases<kCells> bases;
  LaneViews<kLanes> lanes;
};

__device__ void load_step(const PassArgs& a, const float* queries, int32_t first, int32_t len, int32_t step, Shared& s) {
  for (int i = threadIdx.x; i < kLanes * (kStep / 4); i += kThreads) {
    const int row = i / (kStep / 4), e = i % (kStep / 4) * 4;
    *reinterpret_cast<float4*>(&s.stage.q[row][e]) = *reinterpret_cast<const float4*>(queries + row * kStep + e);
  }
  for (int i = threadIdx.x; i < kCells * (kStep / 4); i += kThreads) {
    const int row = i / (kStep / 4), e = i % (kStep / 4) * 4;
    const DepthElement x(a, step, e);
    float4 key = make_float4(0, 0, 0, 0);
    if (x.there && (first + row) * a.p.stride + x.s < len) {
      key = prefill::read_4(a.p.kv.k, a.p.kv.dtype, s.bases.at[x.s / tokens_of_part(a)][row] + offset_in_part(a, x), 1);
    }
    *reinterpret_cast<float4*>(&s.stage.k[row][e]) = key;
  }
}

__global__ void __launch_bounds__(kThreads) score_f32(const __grid_constant__ PassArgs a) {
  auto& s = *reinterpret_cast<Shared*>(prefill::shared_memory());
  const int32_t kv_head = blockIdx.z, lane = blockIdx.y * kLanes, first = blockIdx.x * kCells;
  const float scale = score_scale(a, kv_head);
  each_sequence(a, lane, kLanes, [&](int32_t tile, int32_t end, const Place& last) {
    if (first * a.p.stride >= last.len) return;
    __syncthreads();  // the sequence before is done with everything
    fill_lanes(a, kv_head, lane, tile, end, s.lanes);
    fill_bases(a, kv_head, last.seq, first, last.len, kThreads, s.bases);
    Product::Sums acc = {};
    for (int32_t step = 0; step < 2 * a.half_steps; ++step) {
      __syncthreads();
      if (step == a.half_steps) {
        Product::each_sum(acc, [&](int l, int c, float sum) {
          if (s.lanes.cell[l] == first + c) s.lanes.half_sum[l] = sum * scale;
        });
      }
      load_step(a, queries_of<float>(a, kv_head, blockIdx.y, step), first, last.len, step, s);
      __syncthreads();
      Product::multiply<float>(s.stage, acc);
    }
    Product::each_sum(acc, [&](int l, int c, float sum) { s.scores[l][c] = sum * scale; });
    __syncthreads();
    weigh<kLanes, kCells, kPitch>(a, s.lanes, s.scores[0], first, last.len);
  });
}

}  // namespace

ScoreEntry f32_kernel() {
  return {choose(Numerics::f32, DType::f32, false),
          true,
          {reinterpret_cast<const void*>(&score_f32), kThreads, static_cast<int32_t>(sizeof(Shared))}};
}

}  // namespace fovea::cuda::xattention
