// Scores of cells on tensor cores by `mma`: the product of two matrices whose rows are long (S * head_dim), the right one in pages.
// Steps of the depth go through a ring of stages in shared memory, filled two steps ahead. bf16, f16, and fp8 as f16.
#include "kernels/cuda/xattention/mma_product.cuh"

namespace fovea::cuda::xattention {
namespace {

using Product = MmaProduct;
using Stage = Product::Stage;
constexpr int kLanes = Product::kRows, kCells = Product::kColumns, kStages = Product::kStages, kThreads = Product::kThreads;
constexpr int kPitch = kCells + 8;

struct Shared {
  union {
    Stage stages[kStages];
    float scores[kLanes][kPitch];  // when all steps are done
  };
  KeyBases<kCells> bases;
  LaneViews<kLanes> lanes;
};

// ---- The kernel -----------------------------------------------------------------------------------------------------------------

// Each thread one chunk of 16 bytes of every 32nd row.
template <typename T, bool kConverts>
__device__ __forceinline__ void load_stage(const PassArgs& a, int32_t kv_head, KeyChunks<kCells, kThreads, kConverts>& keys,
                                           const KeyBases<kCells>& bases, int32_t step, Stage& stage) {
  const T* queries = queries_of<T>(a, kv_head, blockIdx.y, step);
#pragma unroll
  for (int i = 0; i < kLanes * 128 / 16 / kThreads; ++i) {
    const int at = i * kThreads + threadIdx.x;  // chunks lie in global memory as they do here
    prefill::copy_async_16(prefill::shared_address(stage.q.bytes) + at * 16, queries + at * 8, true);
  }
  keys.seek(a, step, bases);
  if constexpr (kConverts) {
    keys.read(a);
    keys.store(a, stage.k.bytes);
  } else {
    keys.copy(a, stage.k.bytes);
  }
}

template <typename T, bool kConverts>
__global__ void __launch_bounds__(kThreads, 2) score_mma(const __grid_constant__ PassArgs a) {
  auto& s = *reinterpret_cast<Shared*>(prefill::shared_memory());
  const int32_t kv_head = blockIdx.z, lane = blockIdx.y * kLanes, first = blockIdx.x * kCells, steps = 2 * a.half_steps;
  const float scale = score_scale(a, kv_head);
  each_sequence(a, lane, kLanes, [&](int32_t tile, int32_t end, const Place& last) {
    if (first * a.p.stride >= last.len) return;
    __syncthreads();  // the sequence before is done with everything
    fill_lanes(a, kv_head, lane, tile, end, s.lanes);
    fill_bases(a, kv_head, last.seq, first, last.len, kThreads, s.bases);
    __syncthreads();
    KeyChunks<kCells, kThreads, kConverts> keys(a, first, last.len);
    for (int32_t step = 0; step < 2; ++step) {
      load_stage<T>(a, kv_head, keys, s.bases, step, s.stages[step]);
      prefill::copy_async_commit();
    }
    Product::Sums acc = {};
    for (int32_t step = 0; step < steps; ++step) {
      if (step == a.half_steps) {
        Product::each_sum(acc, [&](int l, int c, float sum) {
          if (s.lanes.cell[l] == first + c) s.lanes.half_sum[l] = sum * scale;
        });
      }
      prefill::copy_async_wait<1>();
      __syncthreads();  // the step is there for all; the stage that is filled next is free
      if (step + 2 < steps) load_stage<T>(a, kv_head, keys, s.bases, step + 2, s.stages[(step + 2) % kStages]);
      prefill::copy_async_commit();
      Product::multiply<T>(s.stages[step % kStages], acc);
    }
    __syncthreads();  // no stage is read any more
    Product::each_sum(acc, [&](int l, int c, float sum) { s.scores[l][c] = sum * scale; });
    __syncthreads();
    weigh<kLanes, kCells, kPitch>(a, s.lanes, s.scores[0], first, last.len);
  });
}

template <typename T, bool kConverts>
ScoreEntry entry(DType math) {
  return {{Path::mma, math, kLanes, kCells},
          kConverts,
          {reinterpret_cast<const void*>(&score_mma<T, kConverts>), kThreads, static_cast<int32_t>(sizeof(Shared))}};
}

}  // namespace

std::span<const ScoreEntry> mma_kernels() {
  static const ScoreEntry kEntries[] = {entry<__nv_bfloat16, false>(DType::bf16), entry<__half, false>(DType::f16),
                                        entry<__half, true>(DType::f16)};
  return kEntries;
}

}  // namespace fovea::cuda::xattention
