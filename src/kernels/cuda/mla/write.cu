// A thread block a token: it turns the rope parts of all heads, then norms, turns and writes the token's entry. Roundings are the
// reference's, one by one.
#include <cuda_runtime.h>

#include <algorithm>

#include "base/check.h"
#include "kernels/common/checks.h"
#include "kernels/cuda/kv_write/cache_key.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/mla/mla.h"

namespace fovea::cuda {
namespace mla {
namespace {

constexpr int kThreads = 256;

// Element where the entry of slot * bs + offset begins.
__device__ int64_t entry_at(const KvView& kv, int64_t slot) {
  return kv_writing::block_of(slot, kv.block_size) * kv.block_stride +
         static_cast<int64_t>(kv_writing::offset_in_block(slot, kv.block_size)) * kv.head_dim;
}

__device__ void store(const KvView& kv, int64_t at, float x) {
  switch (kv.dtype) {
    case DType::f32:
      static_cast<float*>(kv.k)[at] = x;
      return;
    case DType::f16:
      static_cast<__half*>(kv.k)[at] = __float2half_rn(x);
      return;
    default:
      static_cast<__nv_bfloat16*>(kv.k)[at] = __float2bfloat16_rn(x);
  }
}

struct WriteArgs {
  MlaWriteParams p;
  KvView kv;  // p.kv's copy: that one is host memory
};

// The two elements of pair i, and what they are turned to.
struct Turned {
  int first, second;
  float a, b;
};
__device__ Turned turn(const MlaWriteParams& p, const float* x, int token, int i) {
  const int half = p.shape.rope / 2;
  Turned t{p.rope_interleaved ? 2 * i : i, p.rope_interleaved ? 2 * i + 1 : i + half, 0.0f, 0.0f};
  const float cos = p.cos[static_cast<int64_t>(token) * half + i], sin = p.sin[static_cast<int64_t>(token) * half + i];
  const float a = x[t.first], b = x[t.second];
  t.a = __fsub_rn(__fmul_rn(a, cos), __fmul_rn(b, sin));
  t.b = __fadd_rn(__fmul_rn(b, cos), __fmul_rn(a, sin));
  return t;
}

// 1 / rms of the latent. Squares are summed in float64, where each is exact.
__device__ float inverse_rms(const float* x, int latent, float eps) {
  __shared__ double partial[kThreads / 32];
  double sum = 0.0;
  for (int i = threadIdx.x; i < latent; i += kThreads) sum += static_cast<double>(x[i]) * x[i];
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  double total = 0.0;
  for (double x : partial) total += x;
  return static_cast<float>(1.0 / sqrt(total / latent + eps));
}

__global__ void __launch_bounds__(kThreads) write_entries(const __grid_constant__ WriteArgs a) {
  const MlaWriteParams& p = a.p;
  const MlaShape& s = p.shape;
  const int token = static_cast<int>(blockIdx.x), half = s.rope / 2;
  for (int i = threadIdx.x; i < p.num_heads * half; i += kThreads) {
    float* x = p.q + (static_cast<int64_t>(token) * p.num_heads + i / half) * (s.nope + s.rope) + s.nope;
    const Turned t = turn(p, x, token, i % half);
    x[t.first] = t.a;
    x[t.second] = t.b;
  }
  if (p.slot_mapping[token] < 0) return;
  const float* entry = p.kv_a + static_cast<int64_t>(token) * (s.latent + s.rope);
  const int64_t at = entry_at(a.kv, p.slot_mapping[token]);
  const float inverse = inverse_rms(entry, s.latent, p.norm_eps);
  for (int i = threadIdx.x; i < s.latent; i += kThreads) store(a.kv, at + i, __fmul_rn(__fmul_rn(entry[i], inverse), p.norm[i]));
  for (int i = threadIdx.x; i < half; i += kThreads) {
    const Turned t = turn(p, entry + s.latent, token, i);
    store(a.kv, at + s.latent + t.first, t.a);
    store(a.kv, at + s.latent + t.second, t.b);
  }
}

struct GatherArgs {
  MlaGatherParams p;
  KvView kv;
};

// The sequence that holds token `token` of the result, and where its tokens begin there. A lane a sequence, 32 at a time; whole
// warps call it. With `to`, all ends are written there.
struct Segment {
  int32_t seq, begin;
};
__device__ Segment find_segment(const MlaGatherParams& p, int32_t token, int32_t* to) {
  const int lane = threadIdx.x % 32;
  Segment found{p.num_seqs, 0};
  int32_t before = 0;
  for (int32_t first = 0; first < p.num_seqs && (to != nullptr || found.seq == p.num_seqs); first += 32) {
    const int32_t s = first + lane;
    int32_t size = 0;
    if (s < p.num_seqs) {
      const auto range = p.range(p.q_indptr[s + 1] - p.q_indptr[s], p.seq_len[s]);
      size = range.end - range.first;
    }
    int32_t end = size;
    for (int step = 1; step < 32; step *= 2) {
      const int32_t other = __shfl_up_sync(0xffffffffu, end, step);
      if (lane >= step) end += other;
    }
    end += before;
    if (to != nullptr && s < p.num_seqs) to[s + 1] = end;
    const unsigned holds = __ballot_sync(0xffffffffu, end - size <= token && token < end);
    if (holds != 0) {
      const int at = __ffs(holds) - 1;
      found = {first + at, __shfl_sync(0xffffffffu, end - size, at)};
    }
    before = __shfl_sync(0xffffffffu, end, 31);
  }
  return found;
}

// A warp a token.
__global__ void __launch_bounds__(kThreads) gather_entries(const __grid_constant__ GatherArgs a) {
  const MlaGatherParams& p = a.p;
  const int32_t token = static_cast<int32_t>(blockIdx.x) * (kThreads / 32) + static_cast<int32_t>(threadIdx.x) / 32;
  const int lane = threadIdx.x % 32, rope = a.kv.head_dim - p.latent;
  const bool first = token == 0;
  if (first && lane == 0) p.cu_lengths[0] = 0;
  const Segment at = find_segment(p, token, first ? p.cu_lengths : nullptr);
  if (token >= p.tokens) return;
  const auto range = p.range(p.q_indptr[at.seq + 1] - p.q_indptr[at.seq], p.seq_len[at.seq]);
  const int32_t pos = range.first + token - at.begin;
  const int64_t slot = a.kv.table.slots[at.seq * a.kv.table.seq_stride + kv_writing::block_of(pos, a.kv.block_size)];
  const int64_t from = entry_at(a.kv, slot * a.kv.block_size + kv_writing::offset_in_block(pos, a.kv.block_size));
  float *latent_out = p.latent_out + static_cast<int64_t>(token) * p.latent,
        *rope_out = p.rope_out + static_cast<int64_t>(token) * rope;
  for (int i = lane; i < p.latent; i += 32) latent_out[i] = kv_writing::read(a.kv.k, a.kv.dtype, from + i);
  for (int i = lane; i < rope; i += 32) rope_out[i] = kv_writing::read(a.kv.k, a.kv.dtype, from + p.latent + i);
}

}  // namespace
}  // namespace mla

void mla_write(const MlaWriteParams& p, cudaStream_t stream) {
  if (p.tokens == 0) return;
  check_latent_plane(*p.kv, p.shape.latent);
  FOVEA_CHECK(p.kv->head_dim == p.shape.latent + p.shape.rope);
  mla::write_entries<<<dim3(static_cast<unsigned>(p.tokens)), dim3(mla::kThreads), 0, stream>>>({p, *p.kv});
  check_launch("mla write");
}

void mla_gather(const MlaGatherParams& p, cudaStream_t stream) {
  check_latent_plane(*p.kv, p.latent);
  const auto blocks = static_cast<unsigned>(std::max(1, ceil_div(p.tokens, mla::kThreads / 32)));
  mla::gather_entries<<<dim3(blocks), dim3(mla::kThreads), 0, stream>>>({p, *p.kv});
  check_launch("mla gather");
}

}  // namespace fovea::cuda
