// Which experts a row takes, which rows an expert has, and the sum of what a row's experts give. A rank is how many are better: no
// sorting, and ties are settled by the index.
#include <cuda_runtime.h>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/moe/args.h"

namespace fovea::cuda::moe {
namespace {

constexpr int kThreads = 256;
constexpr int kGroupThreads = 1024;  // no fewer than experts
static_assert(kGroupThreads >= kExpertsMax && kThreads >= kGroupsMax && kThreads >= kTopMax);

struct RouteArgs {
  MoeRouteParams p;
  const float* logits;
};

__device__ int rank_of(const float* values, int count, int i) {
  int rank = 0;
  for (int j = 0; j < count; ++j) rank += values[j] > values[i] || (values[j] == values[i] && j < i);
  return rank;
}

// The sum over the block, in every thread. Once a launch.
__device__ double block_sum(double x) {
  __shared__ double partial[kThreads / 32];
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
  __syncthreads();
  double sum = 0.0;
  for (double part : partial) sum += part;
  return sum;
}

// Float64 as the reference's: experts that tie there tie here.
__device__ void score_experts(const MoeRouteParams& p, const float* logits, float* scores) {
  if (p.scoring == ExpertScoring::sigmoid) {
    for (int e = threadIdx.x; e < p.experts; e += kThreads)
      scores[e] = static_cast<float>(1.0 / (1.0 + exp(-static_cast<double>(logits[e]))));
    return;
  }
  float most = logits[0];
  for (int e = 1; e < p.experts; ++e) most = fmaxf(most, logits[e]);
  double mine = 0.0;
  for (int e = threadIdx.x; e < p.experts; e += kThreads) mine += exp(static_cast<double>(logits[e]) - most);
  const double sum = block_sum(mine);
  for (int e = threadIdx.x; e < p.experts; e += kThreads)
    scores[e] = static_cast<float>(exp(static_cast<double>(logits[e]) - most) / sum);
}

// The sum of the best group_top of a group, the best first.
__device__ float group_score(const MoeRouteParams& p, const float* choice, int size) {
  float sum = 0.0f, last = 0.0f;
  int last_at = -1;
  for (int i = 0; i < min(p.group_top, size); ++i) {
    int best = -1;
    for (int e = 0; e < size; ++e) {
      const bool behind = last_at < 0 || choice[e] < last || (choice[e] == last && e > last_at);
      if (behind && (best < 0 || choice[e] > choice[best])) best = e;
    }
    last = choice[best], last_at = best;
    sum += last;
  }
  return sum;
}

// A block a row.
__global__ void __launch_bounds__(kThreads) choose(const __grid_constant__ RouteArgs a) {
  __shared__ float scores[kExpertsMax], choice[kExpertsMax], groups[kGroupsMax], chosen[kTopMax];
  const MoeRouteParams& p = a.p;
  const int64_t row = blockIdx.x;
  const int size = p.experts / p.groups;
  score_experts(p, a.logits + row * p.experts, scores);
  for (int e = threadIdx.x; e < p.experts; e += kThreads) {
    const float x = p.bias == nullptr ? scores[e] : scores[e] + p.bias[e];
    choice[e] = x == x ? x : -INFINITY;  // what is no number is never better
  }
  __syncthreads();
  if (p.topk_groups < p.groups) {
    const int g = threadIdx.x;
    if (g < p.groups) groups[g] = group_score(p, choice + g * size, size);
    __syncthreads();
    if (g < p.groups && rank_of(groups, p.groups, g) >= p.topk_groups) {
      for (int e = g * size; e < (g + 1) * size; ++e) choice[e] = -INFINITY;
    }
    __syncthreads();
  }
  for (int e = threadIdx.x; e < p.experts; e += kThreads) {
    const int rank = rank_of(choice, p.experts, e);
    if (rank >= p.top_k) continue;
    p.ids[row * p.top_k + rank] = e;
    chosen[rank] = scores[e];
  }
  __syncthreads();
  float sum = 0.0f;
  for (int i = 0; i < p.top_k; ++i) sum += chosen[i];
  const int i = threadIdx.x;
  if (i < p.top_k) p.weights[row * p.top_k + i] = (p.normalise ? chosen[i] / (sum + 1e-20f) : chosen[i]) * p.scaling;
}

// One block; a thread an expert, then a thread some places. Which place of an expert comes first changes nothing: a row's products
// do not depend on where in a tile it lies.
__global__ void __launch_bounds__(kGroupThreads) group(const int32_t* ids, int32_t places, const Groups groups) {
  __shared__ int32_t counts[kGroupThreads], rows_to[kGroupThreads], tiles_to[kGroupThreads];
  const int expert = threadIdx.x;
  counts[expert] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < places; i += kGroupThreads) atomicAdd(&counts[ids[i]], 1);
  __syncthreads();
  const int rows = counts[expert], tiles = (rows + kTileRows - 1) / kTileRows;
  rows_to[expert] = rows;
  tiles_to[expert] = tiles;
  __syncthreads();
  for (int step = 1; step < kGroupThreads; step *= 2) {  // sums of all experts up to this one
    const int more_rows = expert >= step ? rows_to[expert - step] : 0, more_tiles = expert >= step ? tiles_to[expert - step] : 0;
    __syncthreads();
    rows_to[expert] += more_rows;
    tiles_to[expert] += more_tiles;
    __syncthreads();
  }
  const int first = rows_to[expert] - rows;
  for (int t = 0; t < tiles; ++t) {
    const int at = tiles_to[expert] - tiles + t;
    groups.expert[at] = expert;
    groups.begin[at] = first + t * kTileRows;
    groups.end[at] = min(first + (t + 1) * kTileRows, first + rows);
  }
  if (expert == 0) *groups.tiles = tiles_to[kGroupThreads - 1];
  counts[expert] = first;
  __syncthreads();
  for (int i = threadIdx.x; i < places; i += kGroupThreads) groups.order[atomicAdd(&counts[ids[i]], 1)] = i;
}

struct CombineArgs {
  MoeExpertsParams p;
  const float* parts;
};

// A block a row.
__global__ void __launch_bounds__(kThreads) add_parts(const __grid_constant__ CombineArgs a) {
  __shared__ int32_t ids[kTopMax];
  __shared__ int32_t ascending[kTopMax];
  __shared__ float weights[kTopMax];
  const MoeExpertsParams& p = a.p;
  const int64_t row = blockIdx.x;
  const int i = threadIdx.x;
  if (i < p.top_k) ids[i] = p.ids[row * p.top_k + i];
  __syncthreads();
  if (i < p.top_k) {
    int rank = 0;
    for (int j = 0; j < p.top_k; ++j) rank += ids[j] < ids[i];
    ascending[rank] = i;
    weights[rank] = p.weights[row * p.top_k + i];
  }
  __syncthreads();
  for (int col = threadIdx.x; col < p.hidden; col += kThreads) {
    float sum = 0.0f;
    for (int r = 0; r < p.top_k; ++r) sum = fmaf(weights[r], a.parts[(row * p.top_k + ascending[r]) * p.hidden + col], sum);
    p.out[row * p.hidden + col] = sum;
  }
}

}  // namespace

void choose_experts(const MoeRouteParams& p, const float* logits, cudaStream_t stream) {
  choose<<<dim3(static_cast<unsigned>(p.rows)), dim3(kThreads), 0, stream>>>({p, logits});
  check_launch("choice of experts");
}

void group_places(const int32_t* ids, int32_t places, const Groups& groups, cudaStream_t stream) {
  group<<<1, kGroupThreads, 0, stream>>>(ids, places, groups);
  check_launch("rows by expert");
}

void combine(const MoeExpertsParams& p, const float* parts, cudaStream_t stream) {
  add_parts<<<dim3(static_cast<unsigned>(p.rows)), dim3(kThreads), 0, stream>>>({p, parts});
  check_launch("sum over experts");
}

}  // namespace fovea::cuda::moe
