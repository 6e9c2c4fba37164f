#include <algorithm>

#include "kernels/cuda/sample/row.cuh"

namespace fovea::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kEach = 4;      // tokens of a thread at once
constexpr int kBlocks = 512;  // of all rows, some a multiprocessor

// The best of every row without penalties, whose token it is if nothing is left to chance. Small enough to wait beside a product that
// fills a multiprocessor, so that nothing has to be fetched when the logits are there: beside weights on their way, a line of code takes
// microseconds.
__global__ void __launch_bounds__(kThreads, 2048 / kThreads) best_kernel(const __grid_constant__ SampleParams p, BestOfRow* rows) {
  __shared__ uint64_t of_warp[kThreads / 32];
  let_next_begin();
  const int r = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (is_penalised(p, r)) return wait_for_previous();  // what lies behind waits for this kernel alone
  const Row row{p.logits + (p.row_index ? p.row_index[r] : r) * static_cast<int64_t>(p.vocab), nullptr, 1.0f, 0.0f, p.vocab};
  const bool greedy = p.temperature[r] == 0.0f;
#pragma unroll 1
  for (bool real = false;; real = true) {  // the first time over no tokens, for the code's sake
    if (real) wait_for_previous();
    const int end = real ? p.vocab : 0;
    uint64_t best = kWorst;
    for (int base = blockIdx.x * kEach * kThreads + threadIdx.x; base < end; base += gridDim.x * kEach * kThreads) {
      float values[kEach];
#pragma unroll
      for (int u = 0; u < kEach; ++u) values[u] = base + u * kThreads < end ? row.value(base + u * kThreads) : -INFINITY;
#pragma unroll
      for (int u = 0; u < kEach; ++u) {
        const uint64_t rank = rank_of(values[u], base + u * kThreads);
        if (base + u * kThreads < end) best = min(best, rank);
      }
    }
    best = best_of_warp(best);
    if (lane == 0) of_warp[warp] = best;
    __syncthreads();
    if (warp == 0) {
      best = best_of_warp(lane < kThreads / 32 ? of_warp[lane] : kWorst);
      if (lane == 0) {
        atomicMax(&rows[r].least, ~best);
        __threadfence();
        const uint32_t told = atomicAdd(&rows[r].told, real ? 1u : 0u);
        if (real && told == gridDim.x - 1) {
          best = ~atomicExch(&rows[r].least, 0ull);
          rows[r].told = 0;
          rows[r].best = best;
          if (greedy) p.tokens[r] = id_of(best);
        }
      }
    }
    if (real) return;
    __syncthreads();
  }
}

}  // namespace

void find_best(const SampleParams& p, BestOfRow* rows, const Queue& queue) {
  const int parts = std::clamp(kBlocks / p.rows, 1, ceil_div(p.vocab, kEach * kThreads));
  launch("best", best_kernel, dim3(parts, p.rows), kThreads, queue, p, rows);
}

}  // namespace fovea::cuda
