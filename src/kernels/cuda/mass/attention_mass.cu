#include "kernels/cuda/mass/attention_mass.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "kernels/cuda/kv_write/cache_key.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/vec.cuh"

namespace fovea::cuda {
namespace mass {
namespace {

constexpr int kWarp = 32;
constexpr int kThreads = 256;  // and tokens of a thread block: a power of two, no fewer than the largest block has
constexpr int kWarps = kThreads / kWarp;
constexpr int kHeads = 8;  // whose scores are counted at once
constexpr float kNone = -__builtin_huge_valf();

struct Args {
  AttentionMassParams p;
  int32_t first_row = 0;
  float2* parts = nullptr;  // of the rows of this pass
  int64_t pitch = 0;
};

// What softmax makes of x beside `most`, also where there is nothing to compare.
__device__ float weight(float x, float most) { return x == kNone ? 0.0f : expf(x - most); }

using cuda::widen;
__device__ void widen_fp8(uint4 v, float (&out)[16], __nv_fp8_interpretation_t kind) {
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const auto byte = static_cast<__nv_fp8_storage_t>(words[i / 4] >> (i % 4 * 8));
    out[i] = __half2float(__half(__nv_cvt_fp8_to_halfraw(byte, kind)));
  }
}
__device__ void widen(uint4 v, float (&out)[16], __nv_fp8_e4m3) { widen_fp8(v, out, __NV_E4M3); }
__device__ void widen(uint4 v, float (&out)[16], __nv_fp8_e5m2) { widen_fp8(v, out, __NV_E5M2); }

// Scores of a thread's token: `heads` query heads from the first on.
template <typename T>
__device__ void score_token(const KvView& kv, int64_t base, int in_block, const float* q, int heads, float (&scores)[kHeads]) {
  constexpr int kPiece = kVec<T>;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) scores[h] = 0.0f;
  const T* keys = static_cast<const T*>(kv.k) + base;
  for (int e = 0; e < kv.head_dim; e += kPiece) {
    float key[kPiece];
    widen(*reinterpret_cast<const uint4*>(keys + kv_writing::key_offset(kv, in_block, e)), key, T{});
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (h >= heads) break;
#pragma unroll
      for (int i = 0; i < kPiece; ++i) scores[h] = fmaf(q[h * kv.head_dim + e + i], key[i], scores[h]);
    }
  }
}

// Grid: (chunks of kThreads tokens, KV heads, rows).
template <typename T>
__global__ void __launch_bounds__(kThreads) parts(const __grid_constant__ Args a) {
  __shared__ float scores[kHeads][kThreads];
  const AttentionMassParams& p = a.p;
  const KvView& kv = p.kv;
  const int row = a.first_row + static_cast<int>(blockIdx.z), kv_head = static_cast<int>(blockIdx.y);
  const int len = p.row_len[row], group = p.num_heads / kv.kv_heads, first_token = static_cast<int>(blockIdx.x) * kThreads;
  if (first_token >= len) return;
  const int token = first_token + static_cast<int>(threadIdx.x), warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int32_t* slots = kv.table.slots + p.row_seq[row] * kv.table.seq_stride + kv_head * kv.table.head_stride;
  const int64_t base =
      token < len ? slots[token / kv.block_size] * kv.block_stride + static_cast<int64_t>(kv_head) * kv.head_stride : 0;
  const float scale = kv.k_scale == nullptr ? p.scale : p.scale * kv.k_scale[kv_head];
  const int blocks = min(kThreads / kv.block_size, (len - first_token + kv.block_size - 1) / kv.block_size);
  for (int first = 0; first < group; first += kHeads) {
    const int heads = min(kHeads, group - first), head = kv_head * group + first;
    float mine[kHeads];
    const float* q = p.q + (static_cast<int64_t>(row) * p.num_heads + head) * kv.head_dim;
    if (token < len) score_token<T>(kv, base, token % kv.block_size, q, heads, mine);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) scores[h][threadIdx.x] = token < len ? mine[h] * scale : kNone;
    __syncthreads();
    for (int i = warp; i < heads * blocks; i += kWarps) {
      const int h = i / blocks, block = i % blocks;
      const float* of = scores[h] + block * kv.block_size;
      float most = kNone, sum = 0.0f;
      for (int t = lane; t < kv.block_size; t += kWarp) most = fmaxf(most, of[t]);
      most = warp_max(most);
      for (int t = lane; t < kv.block_size; t += kWarp) sum += weight(of[t], most);
      sum = warp_sum(sum);
      const int64_t at =
          (static_cast<int64_t>(blockIdx.z) * p.num_heads + head + h) * a.pitch + first_token / kv.block_size + block;
      if (lane == 0) a.parts[at] = {most, sum};
    }
    __syncthreads();
  }
}

// Grid: (KV heads, rows).
__global__ void __launch_bounds__(kThreads) put_together(const __grid_constant__ Args a) {
  __shared__ float greatest[kWarps], total[kWarps];
  const AttentionMassParams& p = a.p;
  const int row = a.first_row + static_cast<int>(blockIdx.y), kv_head = static_cast<int>(blockIdx.x);
  const int group = p.num_heads / p.kv.kv_heads, blocks = (p.row_len[row] + p.kv.block_size - 1) / p.kv.block_size;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  float* mass = p.mass + (static_cast<int64_t>(row) * p.kv.kv_heads + kv_head) * p.max_blocks;
  for (int b = threadIdx.x; b < p.max_blocks; b += kThreads) mass[b] = 0.0f;
  for (int g = 0; g < group; ++g) {
    const float2* of = a.parts + (static_cast<int64_t>(blockIdx.y) * p.num_heads + kv_head * group + g) * a.pitch;
    float most = kNone, sum = 0.0f;
    for (int b = threadIdx.x; b < blocks; b += kThreads) most = fmaxf(most, of[b].x);
    most = warp_max(most);
    if (lane == 0) greatest[warp] = most;
    __syncthreads();
    most = warp_max(lane < kWarps ? greatest[lane] : kNone);
    for (int b = threadIdx.x; b < blocks; b += kThreads) sum += of[b].y * weight(of[b].x, most);
    sum = warp_sum(sum);
    if (lane == 0) total[warp] = sum;
    __syncthreads();
    sum = warp_sum(lane < kWarps ? total[lane] : 0.0f);
    for (int b = threadIdx.x; b < blocks; b += kThreads) mass[b] += of[b].y * weight(of[b].x, most) / sum;
  }
}

}  // namespace
}  // namespace mass

Status AttentionMass::prepare(const OpsLimits& limits, Device& device) {
  constexpr int64_t kScratchBytes = int64_t{16} << 20;  // 8 rows of 128K tokens, 32 heads
  limits_ = limits;
  blocks_ = ceil_div<int64_t>(limits.max_len, limits.block_size);
  const int64_t row_bytes = static_cast<int64_t>(sizeof(float2)) * limits.num_heads * std::max<int64_t>(1, blocks_);
  rows_ = static_cast<int32_t>(std::clamp<int64_t>(kScratchBytes / row_bytes, 1, std::max(1, limits.max_decode_rows)));
  FOVEA_ASSIGN(parts_, device.allocate(row_bytes * rows_, "parts of attention mass"));
  return {};
}

void AttentionMass::run(const AttentionMassParams& p, cudaStream_t stream) {
  const KvView& kv = p.kv;
  FOVEA_CHECK(kv.kv_heads > 0 && p.num_heads % kv.kv_heads == 0 && p.num_heads <= limits_.num_heads);
  FOVEA_CHECK(kv.head_dim % 16 == 0 && kv.head_dim <= 256 && kv.block_size >= limits_.block_size);
  FOVEA_CHECK(std::has_single_bit(static_cast<uint32_t>(kv.block_size)) && kv.block_size <= mass::kThreads);
  for (int32_t first = 0; first < p.rows; first += rows_) {
    const int32_t rows = std::min(rows_, p.rows - first);
    const mass::Args args{p, first, parts_.as<float2>(), blocks_};
    const dim3 grid(static_cast<unsigned>(ceil_div<int64_t>(limits_.max_len, mass::kThreads)), kv.kv_heads, rows);
    auto* parts = kv.dtype == DType::f32        ? &mass::parts<float>
                  : kv.dtype == DType::f16      ? &mass::parts<__half>
                  : kv.dtype == DType::bf16     ? &mass::parts<__nv_bfloat16>
                  : kv.dtype == DType::fp8_e5m2 ? &mass::parts<__nv_fp8_e5m2>
                                                : &mass::parts<__nv_fp8_e4m3>;
    parts<<<grid, dim3(mass::kThreads), 0, stream>>>(args);
    check_launch("parts of attention mass");
    mass::put_together<<<dim3(kv.kv_heads, rows), dim3(mass::kThreads), 0, stream>>>(args);
    check_launch("attention mass");
  }
}

}  // namespace fovea::cuda
