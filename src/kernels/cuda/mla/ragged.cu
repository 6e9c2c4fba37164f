// A thread block takes some rows of one sequence and one head, a warp a row. Keys come to shared memory 32 at a time, each with the
// part that heads share and its value behind it.
#include "kernels/cuda/mla/ragged.h"

#include <string>

#include "base/check.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/mla/ragged_tiles.cuh"
#include "kernels/cuda/mla/warp_query.cuh"

namespace fovea::cuda {
namespace mla {
namespace {

constexpr int kRows = 8, kThreads = kRows * kWarp;
constexpr int kKeys = kWarp;  // in shared memory at a time
constexpr int kKeyMax = 512, kValueMax = 256;
using Query = WarpQuery<kValueMax / kWarp>;

constexpr size_t shared_bytes(int dim, int v_dim) {
  return sizeof(float) * (static_cast<size_t>(kKeys) * key_pitch(dim + v_dim) + kRows * dim);
}

// Grid: (tiles of rows, heads).
__global__ void __launch_bounds__(kThreads) ragged(const __grid_constant__ RaggedAttentionParams p) {
  extern __shared__ __align__(16) float keys[];
  const RowTile tile(p, static_cast<int>(blockIdx.x), kRows);
  if (tile.seq == p.num_seqs) return;
  const int head = static_cast<int>(blockIdx.y), lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int dim = p.k_dim + p.shared_dim, width = dim + p.v_dim, pitch = key_pitch(width);
  const int row = tile.first + warp, end_row = p.q_indptr[tile.seq + 1];
  const int64_t first_key = p.kv_indptr[tile.seq];
  const int all = static_cast<int>(p.kv_indptr[tile.seq + 1] - first_key);
  const auto seen_by = [&](int r) { return p.causal ? max(0, all - (end_row - 1 - r)) : all; };
  const bool there = row < tile.end;
  const int seen = there ? seen_by(row) : 0, most = seen_by(tile.end - 1);
  float* q = keys + kKeys * pitch + warp * dim;
  for (int e = lane; there && e < dim; e += kWarp) q[e] = p.q[row * p.q_stride + static_cast<int64_t>(head) * dim + e];
  Query query;
  for (int first = 0; first < most; first += kKeys) {
    __syncthreads();
    for (int j = warp; j < kKeys; j += kRows) {
      const int64_t key = first_key + first + j;
      const float* k = p.k + key * p.k_stride + head * p.k_head_stride;
      const float* shared = p.k_shared + key * p.shared_dim;
      const float* v = p.v + key * p.v_stride + head * p.v_head_stride;
      for (int e = lane; e < width; e += kWarp) {
        float x = 0.0f;
        if (first + j < most) x = e < p.k_dim ? k[e] : e < dim ? shared[e - p.k_dim] : v[e - dim];
        keys[j * pitch + e] = x;
      }
    }
    __syncthreads();
    if (first < seen) query.take(q, keys, dim, keys + dim, p.v_dim, pitch, p.scale, first + lane < seen);
  }
  if (!there) return;
  query.store(p.out + row * p.out_stride + static_cast<int64_t>(head) * p.v_dim, p.v_dim, inverse_of_sum(query.sum));
  if (lane == 0 && p.lse != nullptr) p.lse[row * p.lse_stride + head] = lse_of({query.max, query.sum});
}

// A warp a row and head.
__global__ void __launch_bounds__(kThreads) merge(const __grid_constant__ LseMergeParams p) {
  const int64_t other = static_cast<int64_t>(blockIdx.x) * kRows + threadIdx.x / kWarp;
  if (other >= static_cast<int64_t>(p.rows) * p.num_heads) return;
  const int64_t row = other / p.num_heads, head = other % p.num_heads;
  const int lane = threadIdx.x % kWarp;
  float* out = p.out + row * p.out_stride + head * p.dim;
  float* lse = p.lse + row * p.lse_stride + head;
  const float a = *lse, b = p.other_lse[other];
  __syncwarp();  // all have read it
  if (b == -INFINITY) return;
  const bool nothing = a == -INFINITY;
  const float most = fmaxf(a, b), weight_a = nothing ? 0.0f : expf(a - most), weight_b = expf(b - most);
  const float sum = weight_a + weight_b;
  for (int e = lane; e < p.dim; e += kWarp) {
    const float x = p.other_out[other * p.dim + e];
    out[e] = nothing ? x : (out[e] * weight_a + x * weight_b) / sum;
  }
  if (lane == 0) *lse = nothing ? b : most + logf(sum);
}

}  // namespace
}  // namespace mla

Status RaggedAttention::prepare(const OpsLimits& limits, Numerics numerics) {
  const MlaShape& s = limits.mla;
  numerics_ = numerics;
  if (s.latent == 0) return {};
  if (s.nope + s.rope > mla::kKeyMax || s.v > mla::kValueMax) {
    return Status::unsupported("latent attention: keys of " + std::to_string(s.nope + s.rope) + " and values of " +
                               std::to_string(s.v) + " exceed " + std::to_string(mla::kKeyMax) + " and " +
                               std::to_string(mla::kValueMax));
  }
  shared_bytes_ = mla::shared_bytes(s.nope + s.rope, s.v);
  cudaError_t e = cudaFuncSetAttribute(mla::ragged, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes_));
  if (e == cudaSuccess) e = mla::prepare_ragged_bf16();
  if (e == cudaSuccess) return {};
  return Status::unsupported(std::string("ragged attention: cudaFuncSetAttribute: ") + cudaGetErrorString(e));
}

void RaggedAttention::run(const RaggedAttentionParams& p, cudaStream_t stream) {
  if (p.rows == 0 || p.num_heads == 0) return;
  if (numerics_ == Numerics::bf16 && mla::suits_tensor_cores(p.k_dim, p.shared_dim, p.v_dim)) return mla::ragged_bf16(p, stream);
  const size_t bytes = mla::shared_bytes(p.k_dim + p.shared_dim, p.v_dim);
  FOVEA_CHECK(bytes <= shared_bytes_ && p.v_dim <= mla::kValueMax);
  const dim3 grid(p.rows / mla::kRows + p.num_seqs, p.num_heads);
  mla::ragged<<<grid, dim3(mla::kThreads), bytes, stream>>>(p);
  check_launch("ragged attention");
}

void lse_merge(const LseMergeParams& p, cudaStream_t stream) {
  const int64_t count = int64_t{p.rows} * p.num_heads;
  if (count == 0) return;
  mla::merge<<<dim3(static_cast<unsigned>(ceil_div<int64_t>(count, mla::kRows))), dim3(mla::kThreads), 0, stream>>>(p);
  check_launch("merge by lse");
}

}  // namespace fovea::cuda
