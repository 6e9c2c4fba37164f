#include "kernels/cuda/cache_ops/cache_ops.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/kv_write/cache_key.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/vec.cuh"

namespace fovea::cuda {
namespace {

constexpr int kThreads = 256;

// ---- Blocks --------------------------------------------------------------------------------------------------------------

constexpr int kParts = 4;     // CTAs that share a block of a plane
constexpr int kInFlight = 4;  // reads of a thread: host memory is far away

__global__ void __launch_bounds__(kThreads) copy(const __grid_constant__ CopyBlocksParams p) {
  const BlockPlane plane = p.planes[blockIdx.x % p.num_planes];
  const int64_t* pair = p.pairs + int64_t{blockIdx.x / p.num_planes} * 2;
  const auto* from = reinterpret_cast<const uint4*>(static_cast<const char*>(plane.from) + pair[0] * plane.from_stride);
  auto* to = reinterpret_cast<uint4*>(static_cast<char*>(plane.to) + pair[1] * plane.to_stride);
  const int64_t pieces = plane.bytes / 16, step = int64_t{kParts} * kThreads;
  for (int64_t i = int64_t{blockIdx.y} * kThreads + threadIdx.x; i < pieces; i += kInFlight * step) {
    uint4 x[kInFlight];
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      if (i + j * step < pieces) x[j] = load_streaming(from + i + j * step);
    }
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      if (i + j * step < pieces) to[i + j * step] = x[j];
    }
  }
}

// ---- Elements ------------------------------------------------------------------------------------------------------------

__global__ void __launch_bounds__(kThreads) convert_elements(const __grid_constant__ ConvertParams p) {
  const int64_t count = p.rows * p.heads * p.elements;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += int64_t{gridDim.x} * kThreads) {
    const int64_t head = i / p.elements % p.heads;
    float x = kv_writing::read(p.in, p.in_dtype, i);
    if (p.in_scale != nullptr) x = __fmul_rn(x, p.in_scale[head]);
    if (p.out_scale != nullptr) x = __fdiv_rn(x, p.out_scale[head]);
    kv_writing::store(p.out, p.out_dtype, i, x);
  }
}

// ---- Page tables ---------------------------------------------------------------------------------------------------------

__device__ int64_t tokens_of(const PageTableToCsrParams& p, int row) {
  const int64_t len = p.seq_len[row], most = p.table_stride * p.block_size;
  return len < 0 ? 0 : len < most ? len : most;
}
__device__ int64_t blocks_of(const PageTableToCsrParams& p, int row) {
  return (tokens_of(p, row) + p.block_size - 1) / p.block_size;
}

// A CTA a row, which adds up the rows before it: rows are few, and nobody waits for another.
__global__ void __launch_bounds__(kThreads) to_csr(const __grid_constant__ PageTableToCsrParams p) {
  __shared__ int64_t before[kThreads];
  const int row = blockIdx.x, t = threadIdx.x;
  before[t] = 0;
  for (int r = t; r < row; r += kThreads) before[t] += blocks_of(p, r);
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (t < half) before[t] += before[t + half];
    __syncthreads();
  }
  const int64_t first = before[0], blocks = blocks_of(p, row);
  for (int64_t b = t; b < blocks && first + b < p.capacity; b += kThreads) p.indices[first + b] = p.table[row * p.table_stride + b];
  if (t > 0) return;
  if (row == 0) p.indptr[0] = 0;
  p.indptr[row + 1] = static_cast<int32_t>(first + blocks);
  p.last_page_len[row] = blocks == 0 ? 0 : static_cast<int32_t>(tokens_of(p, row) - (blocks - 1) * p.block_size);
}

__global__ void __launch_bounds__(kThreads) from_csr(const __grid_constant__ CsrToPageTableParams p) {
  const int row = blockIdx.x;
  const int64_t first = p.indptr[row], blocks = p.indptr[row + 1] - first;
  for (int64_t b = threadIdx.x; b < p.table_stride; b += kThreads) {
    p.table[row * p.table_stride + b] = b < blocks ? p.indices[first + b] : -1;
  }
  if (threadIdx.x == 0) p.seq_len[row] = blocks == 0 ? 0 : static_cast<int32_t>((blocks - 1) * p.block_size + p.last_page_len[row]);
}

__global__ void no_rows(int32_t* indptr) { indptr[0] = 0; }

}  // namespace

void copy_blocks(const CopyBlocksParams& p, cudaStream_t stream) {
  const int64_t work = int64_t{p.count} * p.num_planes;
  if (work == 0) return;
  FOVEA_CHECK(work < INT32_MAX);
  copy<<<dim3(static_cast<unsigned>(work), kParts), kThreads, 0, stream>>>(p);
  check_launch("copy blocks");
}

void convert(const ConvertParams& p, cudaStream_t stream) {
  FOVEA_CHECK(is_kv_dtype(p.in_dtype) && is_kv_dtype(p.out_dtype));
  const int64_t ctas = ceil_div<int64_t>(p.rows * p.heads * p.elements, kThreads);
  if (ctas == 0) return;
  convert_elements<<<static_cast<unsigned>(std::min<int64_t>(ctas, 1 << 16)), kThreads, 0, stream>>>(p);
  check_launch("convert");
}

void page_table_to_csr(const PageTableToCsrParams& p, cudaStream_t stream) {
  if (p.rows == 0) {
    no_rows<<<1, 1, 0, stream>>>(p.indptr);
  } else {
    to_csr<<<static_cast<unsigned>(p.rows), kThreads, 0, stream>>>(p);
  }
  check_launch("page table to csr");
}

void csr_to_page_table(const CsrToPageTableParams& p, cudaStream_t stream) {
  if (p.rows == 0) return;
  from_csr<<<static_cast<unsigned>(p.rows), kThreads, 0, stream>>>(p);
  check_launch("csr to page table");
}

}  // namespace fovea::cuda
