// Scores of blocks by their summaries, as ranks: one pass over the summaries of a row's blocks, which is all the memory traffic.
#include <cuda_runtime.h>

#include "base/check.h"
#include "kernels/cuda/hash_select/config.h"
#include "kernels/cuda/hash_select/hash_code.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/summary/args.h"

namespace fovea::cuda::summary {
namespace {

using hash::kAllLanes;
using hash::kWarp;

constexpr int kThreads = 256;
constexpr int kBlocks = 4;  // of a lane, whose summaries are under way together
constexpr int kWords = 4;   // of a code, at most
constexpr float kLeast = -__builtin_huge_valf();

// One row and KV head of a launch, whose grid is (chunks of blocks, KV heads, rows).
struct List {
  const ScoreArgs& a;
  const int row, head, blocks, group;
  const int32_t* slots;
  uint32_t* ranks;

  __device__ explicit List(const ScoreArgs& args)
      : a(args),
        row(args.first_row + static_cast<int>(blockIdx.z)),
        head(static_cast<int>(blockIdx.y)),
        blocks((args.p.row_len[row] + args.p.block_size - 1) / args.p.block_size),
        group(args.p.num_heads / args.p.kv_heads),
        slots(args.p.table.slots + args.p.row_seq[row] * args.p.table.seq_stride + head * args.p.table.head_stride),
        ranks(args.ranks + (static_cast<int64_t>(blockIdx.z) * args.p.kv_heads + head) * args.pitch) {}

  __device__ const float* query(int g) const {
    return a.p.q + (static_cast<int64_t>(row) * a.p.num_heads + head * group + g) * a.p.head_dim;
  }
  __device__ int64_t cell(int block) const { return static_cast<int64_t>(slots[block]) * a.p.kv_heads + head; }
};

// What is no number is never better.
__device__ float better(float best, float x) { return x > best ? x : best; }

__device__ float dot(float4 a, float4 b, float sum) { return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum)))); }

__device__ float corner(float q, float low, float high) {
  const float a = q * low, b = q * high;
  return a < b ? b : a;
}
__device__ float corners(float4 q, float4 low, float4 high) {
  return corner(q.x, low.x, high.x) + corner(q.y, low.y, high.y) + corner(q.z, low.z, high.z) + corner(q.w, low.w, high.w);
}

template <int kLanes>
__device__ float sum_of_lanes(float x) {
#pragma unroll
  for (int step = 1; step < kLanes; step *= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}

// Means and boxes: `kLanes` neighbours share a block, four elements of each kVecs pieces a lane.
template <int kLanes, int kVecs, bool kBox>
struct Planes {
  using Piece = float4[kVecs];

  const List list;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;

  __device__ explicit Planes(const ScoreArgs& a) : list(a) {}

  __device__ void load(const float* from, Piece& to) const {
#pragma unroll
    for (int v = 0; v < kVecs; ++v) {
      const int e = 4 * (lane + v * kLanes);
      to[v] = from != nullptr && e < list.a.p.head_dim ? *reinterpret_cast<const float4*>(from + e) : float4{};
    }
  }

  // The sum of the group's queries, or one of them.
  __device__ void load_query(int g, bool sum, Piece& q) const {
    load(list.query(g), q);
    for (++g; sum && g < list.group; ++g) {
      Piece other;
      load(list.query(g), other);
#pragma unroll
      for (int v = 0; v < kVecs; ++v) q[v].x += other[v].x, q[v].y += other[v].y, q[v].z += other[v].z, q[v].w += other[v].w;
    }
  }

  __device__ void run() const {
    constexpr int kAtOnce = kThreads / kLanes;
    const SummarySelectParams& p = list.a.p;
    const int first = static_cast<int>(blockIdx.x) * kAtOnce * kBlocks;
    if (first >= list.blocks) return;
    Piece low[kBlocks], high[kBlocks];
    float best[kBlocks];
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      const int block = block_of(i);
      const float* of = block < list.blocks ? p.plane + list.cell(block) * p.head_dim * (kBox ? 2 : 1) : nullptr;
      load(of, low[i]);
      if (kBox) load(of == nullptr ? of : of + p.head_dim, high[i]);
      best[i] = kLeast;
    }
    const bool sum = !kBox || p.average_group;
    for (int g = 0; g < (sum ? 1 : list.group); ++g) {
      Piece q;
      load_query(g, sum, q);
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
        float score = 0.0f;
#pragma unroll
        for (int v = 0; v < kVecs; ++v) score = kBox ? score + corners(q[v], low[i][v], high[i][v]) : dot(q[v], low[i][v], score);
        best[i] = better(best[i], sum_of_lanes<kLanes>(score));
      }
    }
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      if (lane == 0 && block_of(i) < list.blocks) list.ranks[block_of(i)] = hash::rank_of(best[i]);
    }
  }
  __device__ int block_of(int i) const {
    constexpr int kAtOnce = kThreads / kLanes;
    return (static_cast<int>(blockIdx.x) * kBlocks + i) * kAtOnce + static_cast<int>(threadIdx.x) / kLanes;
  }
};

template <int kLanes, int kVecs, bool kBox>
__global__ void __launch_bounds__(kThreads) planes(const __grid_constant__ ScoreArgs a) {
  Planes<kLanes, kVecs, kBox>(a).run();
}

// Codes of means: a thread a block. Ranks are the distances themselves.
template <int kRegs>
__global__ void __launch_bounds__(kThreads) mean_codes(const __grid_constant__ ScoreArgs a) {
  __shared__ uint64_t queries[hash::kQueriesMax][kWords];
  const List list(a);
  if (static_cast<int>(blockIdx.x) * kThreads >= list.blocks) return;
  const int lane = threadIdx.x % kWarp, words = a.p.codec.bits / 64, count = a.p.average_group ? 1 : list.group;
  for (int i = threadIdx.x / kWarp; i < count; i += kThreads / kWarp) {
    float x[kRegs];
#pragma unroll
    for (int r = 0; r < kRegs; ++r) {
      const int e = lane + kWarp * r;
      x[r] = e < a.p.head_dim ? list.query(i)[e] : 0.0f;
      for (int g = 1; a.p.average_group && g < list.group && e < a.p.head_dim; ++g) x[r] += list.query(g)[e];
    }
    const uint64_t word = hash::encode<kRegs>(a.p.codec, x);
    if (lane < kWords) queries[i][lane] = lane < words ? word : 0;
  }
  __syncthreads();
  const int block = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (block >= list.blocks) return;
  const uint64_t* of = a.p.mean_codes + list.cell(block) * words;
  uint64_t code[kWords];
#pragma unroll
  for (int w = 0; w < kWords; ++w) code[w] = w < words ? of[w] : 0;
  uint32_t nearest = 64 * kWords;
  for (int i = 0; i < count; ++i) {
    uint32_t distance = 0;
#pragma unroll
    for (int w = 0; w < kWords; ++w) distance += __popcll(code[w] ^ queries[i][w]);
    nearest = min(nearest, distance);
  }
  list.ranks[block] = nearest;
}

__global__ void __launch_bounds__(kThreads) rank(const __grid_constant__ RankArgs a) {
  const int lists = static_cast<int>(gridDim.y), row = a.first_row + static_cast<int>(blockIdx.z),
            of = static_cast<int>(blockIdx.y);
  const int block = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (block >= (a.p.row_len[row] + a.p.block_size - 1) / a.p.block_size) return;
  const float* scores = a.p.scores + (static_cast<int64_t>(row) * a.p.kv_heads + of) * a.p.max_blocks + block;
  float sum = scores[0];
  for (int h = 1; a.p.share_heads && h < a.p.kv_heads; ++h) sum += scores[static_cast<int64_t>(h) * a.p.max_blocks];
  a.ranks[(static_cast<int64_t>(blockIdx.z) * lists + of) * a.pitch + block] = hash::rank_of(better(kLeast, sum));
}

template <bool kBox>
auto planes_kernel(int32_t head_dim) {
  return head_dim <= 64 ? &planes<16, 1, kBox> : head_dim <= 128 ? &planes<32, 1, kBox> : &planes<32, 2, kBox>;
}

}  // namespace

void score_summaries(const ScoreArgs& a, cudaStream_t stream) {
  const SummarySelectParams& p = a.p;
  const bool codes = p.summary == BlockSummary::mean_code;
  const int n = p.codec.n;
  FOVEA_CHECK(!codes || (p.codec.head_dim == p.head_dim && (n == 64 || n == 128 || n == 256) && p.codec.bits <= 64 * kWords));
  FOVEA_CHECK(!codes || p.num_heads / p.kv_heads <= hash::kQueriesMax);
  auto* kernel = p.summary == BlockSummary::mean     ? planes_kernel<false>(p.head_dim)
                 : p.summary == BlockSummary::minmax ? planes_kernel<true>(p.head_dim)
                 : n == 64                           ? &mean_codes<2>
                 : n == 128                          ? &mean_codes<4>
                                                     : &mean_codes<8>;
  const int64_t at_once = codes ? kThreads : kThreads / (p.head_dim <= 64 ? 16 : 32) * kBlocks;
  const dim3 grid(static_cast<unsigned>(ceil_div(a.pitch, at_once)), p.kv_heads, a.rows);
  kernel<<<grid, dim3(kThreads), 0, stream>>>(a);
  check_launch("score summaries");
}

void rank_scores(const RankArgs& a, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(ceil_div<int64_t>(a.pitch, kThreads)), a.p.share_heads ? 1 : a.p.kv_heads, a.rows);
  rank<<<grid, dim3(kThreads), 0, stream>>>(a);
  check_launch("rank scores");
}

}  // namespace fovea::cuda::summary
