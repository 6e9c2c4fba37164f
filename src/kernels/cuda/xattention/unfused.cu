#include "kernels/cuda/xattention/unfused.h"

#include <type_traits>

#include "base/check.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/xattention/fma_product.cuh"
#include "kernels/cuda/xattention/mma_product.cuh"

namespace fovea::cuda {
namespace {

using namespace xattention;

constexpr float kMinusInfinity = -INFINITY;

// ---- Scores of cells -----------------------------------------------------------------------------------------------------------

// The depth in steps. The pairs that a cell has with itself come first, by themselves: their sum is there to be taken.
struct Depth {
  int32_t dim, own_pairs, own_steps, other_pairs, steps;

  __device__ explicit Depth(const FlatGroupGemmParams& p)
      : dim(p.head_dim),
        own_pairs((p.stride + 1) / 2),
        own_steps((own_pairs * dim + kStep - 1) / kStep),
        other_pairs(p.stride - own_pairs),
        steps(own_steps + (other_pairs * dim + kStep - 1) / kStep) {}
};

template <typename T>
class CellScores {
 public:
  using Product = std::conditional_t<std::is_same_v<T, float>, FmaProduct, MmaProduct>;
  struct Shared {
    typename Product::Stage stages[Product::kStages];
    float own[Product::kRows];  // of each row, its score with its own cell
  };

  __device__ CellScores(const FlatGroupGemmParams& params, Shared& shared)
      : p_(params),
        s_(shared),
        depth_(params),
        first_q_(blockIdx.y * Product::kRows),
        first_k_(blockIdx.x * Product::kColumns),
        q_(static_cast<const T*>(params.query_states) + int64_t{blockIdx.z} * params.q_len * params.head_dim),
        k_(static_cast<const T*>(params.key_states) +
           int64_t{blockIdx.z / (params.heads / params.kv_heads)} * params.kv_len * params.head_dim) {}

  __device__ void run() {
    typename Product::Sums acc = {};
    const int64_t last = int64_t{p_.chunk_start} + first_q_ + Product::kRows - 1;
    if (!p_.is_causal || last >= first_k_) multiply(acc);
    const int32_t rows = p_.q_cells(), cols = p_.k_cells();
    float* const out = p_.attn_weights + int64_t{blockIdx.z} * rows * cols;
    Product::each_sum(acc, [&](int r, int c, float sum) {
      const int32_t i = first_q_ + r, j = first_k_ + c;
      if (i < rows && j < cols) out[int64_t{i} * cols + j] = score(i, j, sum, s_.own[r]);
    });
  }

 private:
  static constexpr int kStages = Product::kStages;
  static constexpr int kElements = 16 / sizeof(T), kChunks = kStep / kElements;  // of a chunk; of a row's step

  __device__ void multiply(typename Product::Sums& acc) {
    for (int step = 0; step < kStages - 1; ++step) load(step);
    for (int32_t step = 0; step < depth_.steps; ++step) {
      if (step == depth_.own_steps) take_own(acc);
      prefill::copy_async_wait<kStages - 2>();
      __syncthreads();  // the step is there for all; the stage that is filled next is free
      load(step + kStages - 1);
      Product::template multiply<T>(s_.stages[step % kStages], acc);
    }
    __syncthreads();  // `own` is there for all
  }

  __device__ __forceinline__ void take_own(const typename Product::Sums& acc) {
    Product::each_sum(acc, [&](int r, int c, float sum) {
      if (p_.chunk_start + first_q_ + r == first_k_ + c) s_.own[r] = sum;
    });
  }

  __device__ __forceinline__ void load(int32_t step) {
    if (step < depth_.steps) {
      typename Product::Stage& stage = s_.stages[step % kStages];
      const int chunk = threadIdx.x % kChunks;
      const bool own = step < depth_.own_steps;
      const int32_t at = (own ? step : step - depth_.own_steps) * kStep + chunk * kElements, pair = at / depth_.dim;
      const bool there = pair < (own ? depth_.own_pairs : depth_.other_pairs);
      const int32_t s = own ? pair : pair + depth_.own_pairs, e = at - pair * depth_.dim;
      constexpr int kRowsAtOnce = Product::kThreads / kChunks;
#pragma unroll
      for (int row = threadIdx.x / kChunks; row < Product::kRows; row += kRowsAtOnce) {
        const int64_t token = (int64_t{first_q_} + row) * p_.stride + p_.stride - 1 - s;
        copy(Product::q_chunk(stage, row, chunk), q_, token, e, there && token < p_.q_len);
      }
#pragma unroll
      for (int row = threadIdx.x / kChunks; row < Product::kColumns; row += kRowsAtOnce) {
        const int64_t token = (int64_t{first_k_} + row) * p_.stride + s;
        copy(Product::k_chunk(stage, row, chunk), k_, token, e, there && token < p_.kv_len);
      }
    }
    prefill::copy_async_commit();
  }

  __device__ __forceinline__ void copy(uint32_t to, const T* of, int64_t token, int32_t e, bool there) const {
    prefill::copy_async_16(to, there ? of + token * depth_.dim + e : of, there);
  }

  // Of pair s the query's offset in its cell is stride - 1 - s, the key's s.
  __device__ float score(int32_t i, int32_t j, float sum, float own_sum) const {
    const int64_t cell = int64_t{p_.chunk_start} + i;
    const bool own = p_.is_causal && cell == j;
    const int64_t from = p_.stride - (p_.q_len - int64_t{i} * p_.stride), keys = p_.kv_len - int64_t{j} * p_.stride;
    const int64_t until = min(keys, int64_t{own ? depth_.own_pairs : p_.stride});
    if (max(from, int64_t{0}) >= until || (p_.is_causal && cell < j)) return kMinusInfinity;
    return own ? own_sum : sum;
  }

  const FlatGroupGemmParams& p_;
  Shared& s_;
  const Depth depth_;
  const int32_t first_q_, first_k_;  // rows and columns of the result
  const T *q_, *k_;
};

template <typename T>
__global__ void __launch_bounds__(CellScores<T>::Product::kThreads) score_cells(const __grid_constant__ FlatGroupGemmParams p) {
  CellScores<T>(p, *reinterpret_cast<typename CellScores<T>::Shared*>(prefill::shared_memory())).run();
}

template <typename T>
void launch_scores(const FlatGroupGemmParams& p, cudaStream_t stream) {
  using Product = typename CellScores<T>::Product;
  constexpr int kBytes = sizeof(typename CellScores<T>::Shared);
  check_call("scores of cells", cudaFuncSetAttribute(score_cells<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const dim3 grid(ceil_div(p.k_cells(), Product::kColumns), ceil_div(p.q_cells(), Product::kRows), p.batch * p.heads);
  FOVEA_CHECK(grid.y <= 65535 && grid.z <= 65535);
  score_cells<T><<<grid, Product::kThreads, kBytes, stream>>>(p);
  check_launch("scores of cells");
}

// ---- Sums of blocks ------------------------------------------------------------------------------------------------------------

constexpr int kWarp = 32, kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kMostRows = 1024;  // of a block
constexpr unsigned kAllLanes = 0xffffffffu;

// What a row's scores are weighed with: 2^(scaled - most) * inverse; inverse 0: the row adds nothing.
struct RowScale {
  float most, inverse;
  int32_t seen;
};

__device__ RowScale scale_of_row(const SoftmaxBlockSumParams& p, const float* scores, int32_t row) {
  const int lane = threadIdx.x % kWarp;
  const int64_t cell = int64_t{p.chunk_start} + row;
  RowScale out = {0, 0, 0};
  if (cell >= p.real_q_len) return out;
  out.seen = p.is_causal ? static_cast<int32_t>(min(int64_t{p.cols}, cell + 1)) : p.cols;
  float most = kMinusInfinity, total = 0;
  for (int32_t j = lane; j < out.seen; j += kWarp) most = fmaxf(most, scores[j] * p.scale);
  for (int step = kWarp / 2; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, step));
  if (most == kMinusInfinity) return out;
  for (int32_t j = lane; j < out.seen; j += kWarp) total += exp2f(scores[j] * p.scale - most);
  for (int step = kWarp / 2; step > 0; step /= 2) total += __shfl_xor_sync(kAllLanes, total, step);
  out.most = most;
  out.inverse = 1.0f / total;
  return out;
}

// A block of rows: first what each of its rows is weighed with, then the blocks of columns, a warp each.
__global__ void __launch_bounds__(kThreads) sum_blocks(const __grid_constant__ SoftmaxBlockSumParams p) {
  __shared__ RowScale rows[kMostRows];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int32_t size = p.reshaped_block_size, first = blockIdx.x * size, count = min(size, p.rows - first);
  const int64_t head = blockIdx.y;
  const float* scores = p.attn_weights_slice + (head * p.rows + first) * p.cols;
  for (int32_t r = warp; r < count; r += kWarps) {
    const RowScale row = scale_of_row(p, scores + int64_t{r} * p.cols, first + r);
    if (lane == 0) rows[r] = row;
  }
  __syncthreads();
  const int32_t blocks = p.col_blocks();
  for (int32_t b = warp; b < blocks; b += kWarps) {
    float sum = 0;
    for (int32_t i = lane; i < count * size; i += kWarp) {
      const int32_t r = i / size, j = b * size + (i - r * size);
      const RowScale& row = rows[r];
      if (j < row.seen && row.inverse != 0) sum += exp2f(scores[int64_t{r} * p.cols + j] * p.scale - row.most) * row.inverse;
    }
    for (int step = kWarp / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
    if (lane == 0) p.block_sums[(head * p.row_blocks() + blockIdx.x) * blocks + b] = sum;
  }
}

}  // namespace

void flat_group_gemm_fuse_reshape(const FlatGroupGemmParams& p, cudaStream_t stream) {
  if (p.batch == 0 || p.q_len == 0 || p.kv_len == 0) return;
  FOVEA_CHECK(p.head_dim % 16 == 0 && p.stride >= 2);
  switch (p.dtype) {
    case DType::f32:
      return launch_scores<float>(p, stream);
    case DType::f16:
      return launch_scores<__half>(p, stream);
    case DType::bf16:
      return launch_scores<__nv_bfloat16>(p, stream);
    default:
      FOVEA_CHECK(false && "flat_group_gemm_fuse_reshape: f32, f16 or bf16");
  }
}

void softmax_fuse_block_sum(const SoftmaxBlockSumParams& p, cudaStream_t stream) {
  if (p.batch == 0 || p.rows == 0 || p.cols == 0) return;
  FOVEA_CHECK(p.reshaped_block_size >= 1 && p.reshaped_block_size <= kMostRows && p.batch * p.heads <= 65535);
  sum_blocks<<<dim3(p.row_blocks(), p.batch * p.heads), kThreads, 0, stream>>>(p);
  check_launch("sums of blocks");
}

}  // namespace fovea::cuda
