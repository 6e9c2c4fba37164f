#include "kernels/cuda/hash_ops/hash_ops.h"

#include "base/check.h"
#include "kernels/cuda/hash_select/hash_code.cuh"
#include "kernels/cuda/launch.h"

namespace fovea::cuda {
namespace {

constexpr int kWarps = 4;     // of a CTA that encodes, a vector each
constexpr int kBlocks = 128;  // of a CTA that scores, a thread each
constexpr int kMaxWords = 4;

template <int kRegs>
__global__ void __launch_bounds__(kWarps* hash::kWarp) encode(const __grid_constant__ HashEncodeParams p) {
  const int lane = threadIdx.x % hash::kWarp, words = p.codec.bits / 64;
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / hash::kWarp;
  if (row >= p.rows) return;
  float x[kRegs];
#pragma unroll
  for (int r = 0; r < kRegs; ++r) {
    const int e = lane + hash::kWarp * r;
    x[r] = e < p.codec.head_dim ? p.x[row * p.codec.head_dim + e] : 0.0f;
  }
  hash::KeyLength length;
  const uint64_t word = hash::encode<kRegs>(p.codec, x, p.codec.length_factor ? &length : nullptr);
  if (lane < words) p.codes[row * words + lane] = word;
  if (!p.codec.length_factor) return;
  const uint16_t factor = length.factor(p.codec.scale);
  if (lane == 0) p.factors[row] = factor;
}

__global__ void __launch_bounds__(kBlocks) score(const __grid_constant__ HammingScoresParams p) {
  const int row = blockIdx.z, head = blockIdx.y, len = p.row_len[row], words = p.codes.codec.bits / 64;
  const int block = blockIdx.x * kBlocks + threadIdx.x;
  const int64_t first = int64_t{block} * p.block_size;
  if (first >= len) return;
  const int group = p.num_heads / p.kv_heads;
  const int tokens = len - first < p.block_size ? static_cast<int>(len - first) : p.block_size;
  const int32_t slot = p.table.slots[p.row_seq[row] * p.table.seq_stride + head * p.table.head_stride + block];
  const uint64_t* codes = p.codes.codes + slot * p.codes.block_stride + head * p.codes.head_stride;
  const uint64_t* queries = p.query_codes + (int64_t{row} * p.num_heads + head * group) * words;
  int nearest = 64 * kMaxWords;
  for (int t = 0; t < tokens; ++t) {
    uint64_t key[kMaxWords];
#pragma unroll
    for (int w = 0; w < kMaxWords; ++w) key[w] = w < words ? codes[int64_t{w} * p.block_size + t] : 0;
    for (int g = 0; g < group; ++g) {
      int distance = 0;
#pragma unroll
      for (int w = 0; w < kMaxWords; ++w) {
        if (w < words) distance += __popcll(key[w] ^ __ldg(reinterpret_cast<const unsigned long long*>(queries + g * words + w)));
      }
      nearest = min(nearest, distance);
    }
  }
  p.scores[(int64_t{row} * p.kv_heads + head) * p.max_blocks + block] = static_cast<float>(64 * words - 2 * nearest);
}

}  // namespace

void hash_encode(const HashEncodeParams& p, cudaStream_t stream) {
  if (p.rows == 0) return;
  const int n = p.codec.n;
  FOVEA_CHECK((n == 64 || n == 128 || n == 256) && p.codec.head_dim <= n);
  auto* kernel = n == 64 ? &encode<2> : n == 128 ? &encode<4> : &encode<8>;
  kernel<<<static_cast<unsigned>(ceil_div<int64_t>(p.rows, kWarps)), kWarps * hash::kWarp, 0, stream>>>(p);
  check_launch("hash encode");
}

void hamming_scores(const HammingScoresParams& p, cudaStream_t stream) {
  if (p.rows == 0 || p.max_blocks == 0) return;
  FOVEA_CHECK(p.codes.codec.bits % 64 == 0 && p.codes.codec.bits <= 64 * kMaxWords && p.kv_heads <= 65535 && p.rows <= 65535);
  const dim3 grid(static_cast<unsigned>(ceil_div(p.max_blocks, kBlocks)), static_cast<unsigned>(p.kv_heads),
                  static_cast<unsigned>(p.rows));
  score<<<grid, kBlocks, 0, stream>>>(p);
  check_launch("hamming scores");
}

}  // namespace fovea::cuda
