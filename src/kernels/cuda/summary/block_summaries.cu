// A thread block a token: the one that wrote the last token of a block makes its summaries, a warp a KV head. Lane l holds
// elements l, l + 32, ..., as hash codes are computed; sums run in token order, as the reference's.
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "kernels/cuda/hash_select/hash_code.cuh"
#include "kernels/cuda/kv_write/cache_key.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/summary/summary.h"

namespace fovea::cuda {
namespace summary {
namespace {

using hash::kWarp;
using kv_writing::block_of;
using kv_writing::key_offset;
using kv_writing::key_scale;
using kv_writing::offset_in_block;
using kv_writing::read;

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarp;
constexpr int kAtOnce = 8;  // tokens of a block whose keys are under way together

// Whether no other token of the step lies behind this one in its block. All threads take part.
__device__ bool is_last_of_block(const BlockSummariesParams& p, int token, int64_t slot) {
  const int64_t block = block_of(slot, p.kv.block_size);
  const auto is_behind = [&](int other) {
    return p.slot_mapping[other] > slot && block_of(p.slot_mapping[other], p.kv.block_size) == block;
  };
  if (token + 1 < p.tokens && is_behind(token + 1)) return false;  // a prompt's tokens come in order
  int behind = 0;
  for (int other = threadIdx.x; other < p.tokens; other += kThreads) behind |= is_behind(other);
  return __syncthreads_or(behind) == 0;
}

template <int kRegs>
struct Running {
  float sum[kRegs], least[kRegs], most[kRegs];

  __device__ void take(const float (&x)[kRegs], bool first) {
#pragma unroll
    for (int r = 0; r < kRegs; ++r) {
      sum[r] = first ? x[r] : __fadd_rn(sum[r], x[r]);
      least[r] = first || x[r] < least[r] ? x[r] : least[r];
      most[r] = first || most[r] < x[r] ? x[r] : most[r];
    }
  }
};

// All summaries of a block's first `tokens` keys.
template <int kRegs, DType kDtype>
__device__ void summarize(const BlockSummariesParams& p, int64_t block, int tokens, int head) {
  const KvView& kv = p.kv;
  const int lane = threadIdx.x % kWarp, d = kv.head_dim;
  const int64_t base = block * kv.block_stride + head * kv.head_stride, cell = block * kv.kv_heads + head;
  const float k_scale = key_scale(kv, head);
  Running<kRegs> keys;
  for (int first = 0; first < tokens; first += kAtOnce) {
    float x[kAtOnce][kRegs];
#pragma unroll
    for (int t = 0; t < kAtOnce; ++t) {
#pragma unroll
      for (int r = 0; r < kRegs; ++r) {
        const int e = lane + kWarp * r;
        const bool there = first + t < tokens && e < d;
        x[t][r] = there ? __fmul_rn(read(kv.k, kDtype, base + key_offset(kv, first + t, e)), k_scale) : 0.0f;
      }
    }
#pragma unroll
    for (int t = 0; t < kAtOnce; ++t) {
      if (first + t < tokens) keys.take(x[t], first + t == 0);
    }
  }
  float mean[kRegs];
#pragma unroll
  for (int r = 0; r < kRegs; ++r) {
    const int e = lane + kWarp * r;
    mean[r] = __fdiv_rn(keys.sum[r], static_cast<float>(tokens));
    if (e >= d) continue;
    if (p.mean != nullptr) p.mean[cell * d + e] = mean[r];
    if (p.minmax == nullptr) continue;
    p.minmax[cell * 2 * d + e] = keys.least[r];
    p.minmax[cell * 2 * d + d + e] = keys.most[r];
  }
  if (p.mean_codes == nullptr) return;
  const int words = p.codec.bits / 64;
  const uint64_t word = hash::encode<kRegs>(p.codec, mean);
  if (lane < words) p.mean_codes[cell * words + lane] = word;
}

template <int kRegs, DType kDtype>
__global__ void __launch_bounds__(kThreads) summaries(const __grid_constant__ BlockSummariesParams p) {
  const int token = static_cast<int>(blockIdx.x);
  const int64_t slot = p.slot_mapping[token];
  if (slot < 0 || !is_last_of_block(p, token, slot)) return;
  const int tokens = offset_in_block(slot, p.kv.block_size) + 1;
  for (int head = threadIdx.x / kWarp; head < p.kv.kv_heads; head += kWarps)
    summarize<kRegs, kDtype>(p, block_of(slot, p.kv.block_size), tokens, head);
}

template <DType kDtype>
auto kernel_of(int32_t n) {
  return n == 64 ? &summaries<2, kDtype> : n == 128 ? &summaries<4, kDtype> : &summaries<8, kDtype>;
}

}  // namespace
}  // namespace summary

void block_summaries(const BlockSummariesParams& p, cudaStream_t stream) {
  using namespace summary;
  if (p.tokens == 0) return;
  const int32_t n = static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(std::max(64, p.kv.head_dim))));
  FOVEA_CHECK(p.kv.kv_heads > 0 && n <= 256 && std::has_single_bit(static_cast<uint32_t>(p.kv.block_size)));
  FOVEA_CHECK(p.mean_codes == nullptr || p.codec.n == n);
  auto* kernel = p.kv.dtype == DType::f32        ? kernel_of<DType::f32>(n)
                 : p.kv.dtype == DType::f16      ? kernel_of<DType::f16>(n)
                 : p.kv.dtype == DType::bf16     ? kernel_of<DType::bf16>(n)
                 : p.kv.dtype == DType::fp8_e5m2 ? kernel_of<DType::fp8_e5m2>(n)
                                                 : kernel_of<DType::fp8_e4m3>(n);
  kernel<<<dim3(static_cast<unsigned>(p.tokens)), dim3(kThreads), 0, stream>>>(p);
  check_launch("block summaries");
}

}  // namespace fovea::cuda
