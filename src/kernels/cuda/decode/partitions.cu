// What partitions need beside the kernels that attend to them: empty ones, and their merge.
#include <cmath>

#include "base/check.h"
#include "kernels/cuda/activations.cuh"
#include "kernels/cuda/decode/decode.h"
#include "kernels/cuda/decode/entries.h"
#include "kernels/cuda/launch.h"

namespace fovea::cuda {
namespace {

constexpr int kThreads = 64;  // of a row and head: four dimensions each, at most 256

__global__ void __launch_bounds__(256) clear(float* exp_sums, float* max_logits, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * 256 + threadIdx.x;
  if (i < count) exp_sums[i] = 0.0f, max_logits[i] = -INFINITY;
}

// Every thread adds all partitions up, in their order.
__global__ void __launch_bounds__(kThreads) merge(const __grid_constant__ MergePartitionsParams p) {
  const int64_t row = blockIdx.x;
  const float *sums = p.exp_sums + row * p.partitions, *logits = p.max_logits + row * p.partitions;
  const int e = 4 * threadIdx.x;
  float most = -INFINITY, sum = 0.0f;
  for (int i = 0; i < p.partitions; ++i) most = sums[i] > 0.0f ? fmaxf(most, logits[i]) : most;
  float4 out = {};
  for (int i = 0; i < p.partitions; ++i) {
    if (!(sums[i] > 0.0f)) continue;
    const float w = sums[i] * expf(logits[i] - most);
    sum += w;
    if (e >= p.head_dim) continue;
    const float4 part = __ldg(reinterpret_cast<const float4*>(p.tmp_out + (row * p.partitions + i) * p.head_dim + e));
    out = make_float4(out.x + w * part.x, out.y + w * part.y, out.z + w * part.z, out.w + w * part.w);
  }
  const float f = sum > 0.0f ? 1.0f / sum : 0.0f;
  if (e < p.head_dim)
    write_activations(p.out, p.dtype, row * p.head_dim + e, make_float4(out.x * f, out.y * f, out.z * f, out.w * f));
  if (threadIdx.x == 0 && p.lse != nullptr) p.lse[row] = most + logf(sum);
}

}  // namespace

void decode::clear_partitions(const PartitionedAttentionParams& p, cudaStream_t stream) {
  const int64_t count = int64_t{p.attention.rows} * p.attention.num_heads * p.max_partitions;
  clear<<<static_cast<unsigned>(ceil_div<int64_t>(count, 256)), 256, 0, stream>>>(p.exp_sums, p.max_logits, count);
  check_launch("clear partitions");
}

void merge_partitions(const MergePartitionsParams& p, cudaStream_t stream) {
  FOVEA_CHECK(p.head_dim % 4 == 0 && p.head_dim <= 4 * kThreads);
  const int64_t rows = int64_t{p.rows} * p.num_heads;
  if (rows == 0) return;
  merge<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(p);
  check_launch("merge partitions");
}

}  // namespace fovea::cuda
