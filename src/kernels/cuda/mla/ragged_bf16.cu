// Ragged attention on tensor cores: a thread block takes 64 rows of one sequence and one head, a warp 16 of them, whose queries stay
// in its registers. Keys, each with the part that heads share, and values come rounded to shared memory, kKeys at a time.
#include <cuda_runtime.h>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/mla/ragged_tiles.cuh"
#include "kernels/cuda/mla/warp_query.cuh"
#include "kernels/cuda/prefill/ptx.cuh"

namespace fovea::cuda::mla {
namespace {

using namespace prefill;  // PTX
using T = __nv_bfloat16;

constexpr int kRows = 64, kThreads = 128;

// Of keys and values at most; kKeys as many as registers leave room for.
template <int kKeyDim, int kValueDim, int kTileKeys>
struct Sizes {
  static constexpr int kDim = kKeyDim, kValues = kValueDim, kKeys = kTileKeys;
  // A row of a tile ends in 16 bytes that no one reads: the eight rows of a matrix then meet different banks.
  static constexpr int kKeyBytes = kDim * 2 + 16, kValueBytes = kValues * 2 + 16;
  static constexpr int kTile = kKeys * (kKeyBytes + kValueBytes), kQueries = kRows * kKeyBytes;
  static constexpr int kShared = kTile > kQueries ? kTile : kQueries;
};

template <typename S>
class Attend {
 public:
  __device__ Attend(const RaggedAttentionParams& params, const RowTile& tile, int head)
      : p(params),
        dim_(params.k_dim + params.shared_dim),
        head_(head),
        lane_(threadIdx.x % 32),
        row_(tile.first + threadIdx.x / 32 * 16 + lane_ / 4),
        end_(tile.end),
        first_key_(params.kv_indptr[tile.seq]) {
    const int all = static_cast<int>(params.kv_indptr[tile.seq + 1] - first_key_), end_row = params.q_indptr[tile.seq + 1];
    const auto seen_by = [&](int row) { return params.causal ? max(0, all - (end_row - 1 - row)) : all; };
    for (int i = 0; i < 2; ++i) seen_[i] = row_ + 8 * i < end_ ? seen_by(row_ + 8 * i) : 0;
    most_keys_ = seen_by(tile.end - 1);
  }

  __device__ void run(const RowTile& tile) {
    load_queries(tile);
    for (int first = 0; first < most_keys_; first += S::kKeys) {
      __syncthreads();
      load_tile(first);
      __syncthreads();
      take_tile(first);
    }
    store();
  }

 private:
  __device__ static uint4 rounded(const float* from, bool there) {
    if (!there) return {};
    float x[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = from[i];
    return make_uint4(pack2<T>(x[0], x[1]), pack2<T>(x[2], x[3]), pack2<T>(x[4], x[5]), pack2<T>(x[6], x[7]));
  }

  __device__ void load_queries(const RowTile& tile) {
    for (int i = threadIdx.x; i < kRows * (S::kDim / 8); i += kThreads) {
      const int row = i / (S::kDim / 8), at = i % (S::kDim / 8) * 8;
      const float* from = p.q + (tile.first + row) * p.q_stride + static_cast<int64_t>(head_) * dim_ + at;
      *reinterpret_cast<uint4*>(shared_memory() + row * S::kKeyBytes + at * 2) =
          rounded(from, tile.first + row < end_ && at < dim_);
    }
    __syncthreads();
    const uint32_t rows = shared_address(shared_memory()) + (threadIdx.x / 32 * 16 + lane_ % 16) * S::kKeyBytes + lane_ / 16 * 16;
#pragma unroll
    for (int step = 0; step < S::kDim / 16; ++step) load_matrices(q_[step], rows + step * 32);
  }

  __device__ void load_tile(int first) const {
    constexpr int kChunks = (S::kDim + S::kValues) / 8;
    for (int i = threadIdx.x; i < S::kKeys * kChunks; i += kThreads) {
      const int j = i / kChunks, at = i % kChunks * 8;
      const int64_t key = first_key_ + first + j;
      const bool there = first + j < most_keys_;
      if (at < S::kDim) {
        const float* from =
            at < p.k_dim ? p.k + key * p.k_stride + head_ * p.k_head_stride + at : p.k_shared + key * p.shared_dim + at - p.k_dim;
        *reinterpret_cast<uint4*>(shared_memory() + j * S::kKeyBytes + at * 2) = rounded(from, there && at < dim_);
      } else {
        const int v = at - S::kDim;
        *reinterpret_cast<uint4*>(values() + j * S::kValueBytes + v * 2) =
            rounded(p.v + key * p.v_stride + head_ * p.v_head_stride + v, there && v < p.v_dim);
      }
    }
  }
  __device__ static uint8_t* values() { return shared_memory() + S::kKeys * S::kKeyBytes; }

  __device__ void take_tile(int first) {
    float scores[S::kKeys / 8][4] = {};
    const uint32_t keys = shared_address(shared_memory()) + (lane_ / 16 * 8 + lane_ % 8) * S::kKeyBytes + lane_ / 8 % 2 * 16;
#pragma unroll
    for (int step = 0; step < S::kDim / 16; ++step) {
#pragma unroll
      for (int n = 0; n < S::kKeys / 16; ++n) {
        uint32_t k[4];
        load_matrices(k, keys + n * 16 * S::kKeyBytes + step * 32);
        multiply_add<T>(scores[2 * n], q_[step], k[0], k[1]);
        multiply_add<T>(scores[2 * n + 1], q_[step], k[2], k[3]);
      }
    }
    weigh(first, scores);
    const uint32_t from = shared_address(values()) + lane_ % 16 * S::kValueBytes + lane_ / 16 * 16;
#pragma unroll
    for (int step = 0; step < S::kKeys / 16; ++step) {
      const uint32_t weights[4] = {
          pack2<T>(scores[2 * step][0], scores[2 * step][1]), pack2<T>(scores[2 * step][2], scores[2 * step][3]),
          pack2<T>(scores[2 * step + 1][0], scores[2 * step + 1][1]), pack2<T>(scores[2 * step + 1][2], scores[2 * step + 1][3])};
#pragma unroll
      for (int n = 0; n < S::kValues / 16; ++n) {
        uint32_t v[4];
        load_matrices_transposed(v, from + step * 16 * S::kValueBytes + n * 32);
        multiply_add<T>(out_[2 * n], weights, v[0], v[1]);
        multiply_add<T>(out_[2 * n + 1], weights, v[2], v[3]);
      }
    }
  }

  // Scores become weights; what was summed up before is rescaled.
  __device__ void weigh(int first, float (&scores)[S::kKeys / 8][4]) {
    const float scale = p.scale * kLog2e;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float most = softmax_[i].x, sum = 0.0f;
#pragma unroll
      for (int n = 0; n < S::kKeys / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = scores[n][2 * i + e];
          x = first + n * 8 + lane_ % 4 * 2 + e < seen_[i] ? x * scale : -INFINITY;
          most = fmaxf(most, x);
        }
      }
      most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 1));
      most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 2));
      const float base = most == -INFINITY ? 0.0f : most, correction = exp2_fast(softmax_[i].x - base);
#pragma unroll
      for (int n = 0; n < S::kKeys / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) sum += scores[n][2 * i + e] = exp2_fast(scores[n][2 * i + e] - base);
      }
      softmax_[i] = {most, fmaf(softmax_[i].y, correction, sum)};
#pragma unroll
      for (int n = 0; n < S::kValues / 8; ++n) out_[n][2 * i] *= correction, out_[n][2 * i + 1] *= correction;
    }
  }

  __device__ void store() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float2 softmax = softmax_[i];
      softmax.y += __shfl_xor_sync(kAllLanes, softmax.y, 1);
      softmax.y += __shfl_xor_sync(kAllLanes, softmax.y, 2);
      const int64_t row = row_ + 8 * i;
      if (row >= end_) continue;
      const float factor = inverse_of_sum(softmax.y);
      float* to = p.out + row * p.out_stride + static_cast<int64_t>(head_) * p.v_dim;
#pragma unroll
      for (int n = 0; n < S::kValues / 8; ++n) {
        const int at = n * 8 + lane_ % 4 * 2;
        if (at < p.v_dim) to[at] = out_[n][2 * i] * factor, to[at + 1] = out_[n][2 * i + 1] * factor;
      }
      if (lane_ % 4 == 0 && p.lse != nullptr) p.lse[row * p.lse_stride + head_] = lse_of(softmax);
    }
  }

  const RaggedAttentionParams& p;
  const int dim_, head_, lane_, row_, end_;
  const int64_t first_key_;
  int seen_[2], most_keys_;  // keys of rows row_ and row_ + 8, and of the tile's last row
  uint32_t q_[S::kDim / 16][4];
  float out_[S::kValues / 8][4] = {};
  float2 softmax_[2] = {{-INFINITY, 0.0f}, {-INFINITY, 0.0f}};  // sums: of this thread's keys
};

// Grid: (tiles of rows, heads).
template <typename S>
__global__ void __launch_bounds__(kThreads) ragged_tiles(const __grid_constant__ RaggedAttentionParams p) {
  const RowTile tile(p, static_cast<int>(blockIdx.x), kRows);
  if (tile.seq < p.num_seqs) Attend<S>(p, tile, static_cast<int>(blockIdx.y)).run(tile);
}

using Small = Sizes<192, 128, 64>;  // DeepSeek-V3
using Large = Sizes<256, 256, 32>;  // GLM-5

template <typename S>
void launch_tiles(const RaggedAttentionParams& p, cudaStream_t stream) {
  const dim3 grid(p.rows / kRows + p.num_seqs, p.num_heads);
  ragged_tiles<S><<<grid, dim3(kThreads), S::kShared, stream>>>(p);
  check_launch("ragged attention");
}

}  // namespace

bool suits_tensor_cores(int k_dim, int shared_dim, int v_dim) {
  const bool vectors = k_dim % 8 == 0 && shared_dim % 8 == 0 && v_dim % 8 == 0;
  return vectors && k_dim + shared_dim <= Large::kDim && v_dim <= Large::kValues;
}

cudaError_t prepare_ragged_bf16() {
  const cudaError_t e = cudaFuncSetAttribute(ragged_tiles<Small>, cudaFuncAttributeMaxDynamicSharedMemorySize, Small::kShared);
  if (e != cudaSuccess) return e;
  return cudaFuncSetAttribute(ragged_tiles<Large>, cudaFuncAttributeMaxDynamicSharedMemorySize, Large::kShared);
}

void ragged_bf16(const RaggedAttentionParams& p, cudaStream_t stream) {
  const bool small = p.k_dim + p.shared_dim <= Small::kDim && p.v_dim <= Small::kValues;
  small ? launch_tiles<Small>(p, stream) : launch_tiles<Large>(p, stream);
}

}  // namespace fovea::cuda::mla
