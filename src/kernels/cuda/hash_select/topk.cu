// The nearest blocks of a list, exactly: one CTA a list. Distances are integers (small ones, or ranks of 32 bits), so the k-th
// smallest is found by bisection over their range, where a round is a count and one barrier; it ends where exactly as many as are
// wanted lie below. A prefix sum then puts what is kept in order.
#include <cuda_runtime.h>

#include "kernels/cuda/hash_select/args.h"
#include "kernels/cuda/hash_select/hash_code.cuh"

namespace fovea::cuda::hash {
namespace {

constexpr int kWarps = kTopkThreads / kWarp;
// The distance of a block that distance does not decide on.
template <typename Distance>
constexpr Distance kNever = static_cast<Distance>(~Distance{0});

template <typename Distance>
struct alignas(16) Chunk {
  Distance x[kChunk];
};

struct Shared {  // the last index alternates: one barrier a round
  uint32_t counts[kWarps][2];
  uint32_t totals[kWarps][2];
  uint32_t least[kWarps], most[kWarps];
};

// What a list keeps: its first `init` blocks, its last `local`, and `by_distance` of those between.
struct Quota {
  int32_t blocks, kept, init, local;
  __device__ int32_t by_distance() const { return kept - init - local; }
};

__device__ Quota quota(const HashSelectParams& p, int row) {
  const int32_t blocks = (p.row_len[row] + p.block_size - 1) / p.block_size;
  const int32_t kept = min(p.k[row], blocks);
  if (kept == blocks) return {blocks, kept, kept, 0};
  const int32_t local = min(p.local_blocks, kept);
  return {blocks, kept, min(p.init_blocks, kept - local), local};
}

// The sum of x over the CTA, in all threads.
__device__ uint32_t sum_of_cta(uint32_t x, int round, Shared& s) {
  const uint32_t of_warp = __reduce_add_sync(kAllLanes, x);
  if (threadIdx.x % kWarp == 0) s.counts[threadIdx.x / kWarp][round % 2] = of_warp;
  __syncthreads();
  return __reduce_add_sync(kAllLanes, s.counts[threadIdx.x % kWarp][round % 2]);
}

__device__ uint32_t inclusive_sum(uint32_t x) {
  for (int step = 1; step < kWarp; step *= 2) {
    const uint32_t other = __shfl_up_sync(kAllLanes, x, step);
    if (static_cast<int>(threadIdx.x) % kWarp >= step) x += other;
  }
  return x;
}

// The sum of x over the threads before this one; `total` over all.
__device__ uint32_t sum_before(uint32_t x, int round, Shared& s, uint32_t& total) {
  const uint32_t mine = inclusive_sum(x);
  if (threadIdx.x % kWarp == kWarp - 1) s.totals[threadIdx.x / kWarp][round % 2] = mine;
  __syncthreads();
  const uint32_t of_warp = s.totals[threadIdx.x % kWarp][round % 2], warps = inclusive_sum(of_warp);
  total = __shfl_sync(kAllLanes, warps, kWarp - 1);
  return __shfl_sync(kAllLanes, warps - of_warp, threadIdx.x / kWarp) + mine - x;
}

// The distances of one list. A thread sees the same chunks in every pass over them and shares them with no other.
template <typename Distance>
struct List {
  using Chunks = Chunk<Distance>;
  Chunks* chunks;
  int32_t count;  // of chunks

  // Takes the least distance over the KV heads of the list; what the windows decide on becomes kNever.
  __device__ void stage(const Distance* distances, int heads, int64_t pitch, const Quota& q) const {
    for (int c = threadIdx.x; c < count; c += kTopkThreads) {
      Chunks least = reinterpret_cast<const Chunks*>(distances)[c];
      for (int h = 1; h < heads; ++h) {
        const Chunks other = reinterpret_cast<const Chunks*>(distances + h * pitch)[c];
#pragma unroll
        for (int i = 0; i < kChunk; ++i) least.x[i] = min(least.x[i], other.x[i]);
      }
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        const int block = c * kChunk + i;
        if (block < q.init || block >= q.blocks - q.local) least.x[i] = kNever<Distance>;
      }
      chunks[c] = least;
    }
  }

  // The range of the distances that decide.
  __device__ void range(uint32_t& least, uint32_t& most, Shared& s) const {
    least = kNever<uint32_t>, most = 0;
    for (int c = threadIdx.x; c < count; c += kTopkThreads) {
      const Chunks chunk = chunks[c];
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        if (chunk.x[i] == kNever<Distance>) continue;
        least = min(least, static_cast<uint32_t>(chunk.x[i]));
        most = max(most, static_cast<uint32_t>(chunk.x[i]));
      }
    }
    least = __reduce_min_sync(kAllLanes, least);
    most = __reduce_max_sync(kAllLanes, most);
    if (threadIdx.x % kWarp == 0) s.least[threadIdx.x / kWarp] = least, s.most[threadIdx.x / kWarp] = most;
    __syncthreads();
    least = __reduce_min_sync(kAllLanes, s.least[threadIdx.x % kWarp]);
    most = __reduce_max_sync(kAllLanes, s.most[threadIdx.x % kWarp]);
  }

  // The distance in [low, high] of the `wanted`-th nearest block, or one that exactly so many are nearer than; `below`: how many.
  __device__ uint32_t threshold(uint32_t low, uint32_t high, uint32_t wanted, uint32_t& below, Shared& s) const {
    below = 0;
    for (int round = 0; low < high && below != wanted; ++round) {
      const uint32_t middle = low + (high - low) / 2;
      uint32_t within = 0;
      for (int c = threadIdx.x; c < count; c += kTopkThreads) {
        const Chunks chunk = chunks[c];
#pragma unroll
        for (int i = 0; i < kChunk; ++i) within += chunk.x[i] <= middle;
      }
      within = sum_of_cta(within, round, s);
      if (within > wanted) {
        high = middle;
      } else {
        low = middle + 1;
        below = within;
      }
    }
    return low;
  }

  // Writes all blocks nearer than `limit` and the first `at_limit` of those at it, in order.
  __device__ void write(uint32_t limit, uint32_t at_limit, int32_t* units, Shared& s) const {
    uint32_t near_before = 0, equal_before = 0;  // in the passes so far
    for (int first = 0, pass = 0; first < count; first += kTopkThreads, ++pass) {
      const int c = first + static_cast<int>(threadIdx.x);
      uint32_t both = 0, total;  // nearer << 16 | equal: a pass holds 8,192 blocks
      if (c < count) {
#pragma unroll
        for (int i = 0; i < kChunk; ++i) both += (chunks[c].x[i] < limit ? 1u << 16 : 0u) + (chunks[c].x[i] == limit);
      }
      const uint32_t before = sum_before(both, pass, s, total);
      if (both != 0) write_chunk(c, limit, at_limit, near_before + (before >> 16), equal_before + (before & 0xffffu), units);
      near_before += total >> 16;
      equal_before += total & 0xffffu;
    }
  }

  __device__ void write_chunk(int c, uint32_t limit, uint32_t at_limit, uint32_t nearer, uint32_t equal, int32_t* units) const {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      const uint32_t x = chunks[c].x[i];
      if (x < limit || (x == limit && equal < at_limit)) units[nearer + min(equal, at_limit)] = c * kChunk + i;
      nearer += x < limit;
      equal += x == limit;
    }
  }
};

template <typename Distance>
__global__ void __launch_bounds__(kTopkThreads) topk(const __grid_constant__ TopkArgs a) {
  extern __shared__ __align__(16) uint8_t memory[];
  __shared__ Shared shared;
  const HashSelectParams& p = a.p;
  const int groups = p.share_heads ? 1 : p.kv_heads;
  const int pass_row = static_cast<int>(blockIdx.x) / groups, group = static_cast<int>(blockIdx.x) % groups;
  const int row = a.first_row + pass_row;
  const Quota q = quota(p, row);
  const int64_t list = static_cast<int64_t>(row) * groups + group;
  int32_t* units = p.units + list * p.capacity;
  if (threadIdx.x == 0) p.counts[list] = q.kept;
  for (int i = threadIdx.x; i < q.init; i += kTopkThreads) units[i] = i;
  for (int i = threadIdx.x; i < q.local; i += kTopkThreads) units[q.kept - q.local + i] = q.blocks - q.local + i;
  if (q.by_distance() == 0) return;
  Distance* distances = static_cast<Distance*>(a.distances) + (static_cast<int64_t>(pass_row) * p.kv_heads + group) * a.pitch;
  void* chunks = a.staged ? static_cast<void*>(memory) : distances;
  const List<Distance> blocks{static_cast<Chunk<Distance>*>(chunks), (q.blocks + kChunk - 1) / kChunk};
  blocks.stage(distances, p.share_heads ? p.kv_heads : 1, a.pitch, q);
  uint32_t below, least = 0, most = p.codes.codec.bits;
  if (sizeof(Distance) == 4) blocks.range(least, most, shared);
  const uint32_t limit = blocks.threshold(least, most, q.by_distance(), below, shared);
  blocks.write(limit, q.by_distance() - below, units + q.init, shared);
}

}  // namespace

const void* topk_kernel(bool asymmetric) {
  return asymmetric ? reinterpret_cast<const void*>(&topk<uint32_t>) : reinterpret_cast<const void*>(&topk<uint16_t>);
}

}  // namespace fovea::cuda::hash
