// A thread block a token: it turns the rope parts of all heads, then norms, turns and writes the token's entry. Roundings are the
// reference's, one by one.
#include <cuda_runtime.h>

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
  for (int i = threadIdx.x; i < s.latent; i += kThreads)
    store(a.kv, at + i, __fmul_rn(__fmul_rn(entry[i], inverse), p.norm[i]));
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

__global__ void __launch_bounds__(kThreads) gather_entries(const __grid_constant__ GatherArgs a) {
  const int64_t token = blockIdx.x;
  const int latent = a.p.latent, rope = a.kv.head_dim - latent;
  const int64_t at = entry_at(a.kv, a.p.slots[token]);
  for (int i = threadIdx.x; i < a.kv.head_dim; i += kThreads) {
    const float x = kv_writing::read(a.kv.k, a.kv.dtype, at + i);
    (i < latent ? a.p.latent_out[token * latent + i] : a.p.rope_out[token * rope + i - latent]) = x;
  }
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
  if (p.tokens == 0) return;
  check_latent_plane(*p.kv, p.latent);
  mla::gather_entries<<<dim3(static_cast<unsigned>(p.tokens)), dim3(mla::kThreads), 0, stream>>>({p, *p.kv});
  check_launch("mla gather");
}

}  // namespace fovea::cuda
