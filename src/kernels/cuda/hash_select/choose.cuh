// The best blocks of a list, exactly and in order, by one thread block. Scores are ranks: integers of 32 bits, the lower the
// better.
//
// The last rank that is kept is found by counting: ranks fall into bins of one width from the lowest on, the bin in which the wanted
// number is reached is cut into bins again, and so on down to a width of 1. The first bins cover two octaves of scores, which mostly
// leaves two rounds. Bits of what is kept, counted, give the list's order.
#pragma once

#include <fovea/kernels/select.h>

#include <cstdint>

#include "kernels/cuda/hash_select/config.h"
#include "kernels/cuda/hash_select/hash_code.cuh"

namespace fovea::cuda::hash {

inline constexpr uint32_t kNever = 0xffffffffu;  // worse than every rank

// What a list keeps: its first `init` blocks, its last `local`, and `by_rank` of those between.
struct Quota {
  int32_t blocks, kept, init, local;
  __device__ int32_t by_rank() const { return kept - init - local; }
  __device__ int32_t ranked() const { return blocks - init - local; }

  __device__ static Quota of(const BlockChoice& p, int row) {
    const int32_t blocks = (p.row_len[row] + p.block_size - 1) / p.block_size;
    const int32_t kept = min(p.k[row], blocks);
    if (kept == blocks) return {blocks, kept, kept, 0};
    const int32_t local = min(p.local_blocks, kept);
    return {blocks, kept, min(p.init_blocks, kept - local), local};
  }
};

class Chooser {
 public:
  static constexpr uint32_t kBins = 4096;
  struct Shared {
    uint32_t sums[2][kWarp];  // of a warp; they alternate: one barrier a sum
    uint32_t bin, before;     // where the wanted number is reached
    union {
      alignas(16) uint32_t bins[kBins];  // 0 between rounds
      struct {
        uint32_t below[kSelectThreads], equal[kSelectThreads];  // a bit a rank
      };
    };
  };

  // ranks: [q.ranked()], of the blocks from q.init on; writes behind them in shared memory are done.
  __device__ Chooser(const Quota& q, const uint32_t* ranks, Shared& shared)
      : ranks_(ranks), count_(q.ranked()), wanted_(q.by_rank()), first_(q.init), s_(shared) {}

  // Writes the list's entries [q.init, q.init + q.by_rank()).
  __device__ void write(int32_t* units) { write_below(cut(), units + first_); }

 private:
  static constexpr int kFirstShift = 12;

  // `below` ranks, fewer than wanted, are lower than `limit`; with those at it there are as many as wanted.
  struct Cut {
    uint32_t limit, below;
  };

  __device__ static int threads() { return static_cast<int>(blockDim.x); }
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % kWarp; }
  __device__ static int warp() { return static_cast<int>(threadIdx.x) / kWarp; }
  __device__ static int warps() { return threads() / kWarp; }

  template <typename Visit>
  __device__ void each(const Visit& visit) const {
#pragma unroll 4
    for (int i = threadIdx.x; i < count_; i += threads()) visit(ranks_[i]);
  }

  // The sum over the threads before this one; `total` over all.
  __device__ uint32_t sum_before(uint32_t x, uint32_t& total) {
    uint32_t* sums = s_.sums[round_++ % 2];
    const uint32_t mine = inclusive_sum(x);
    if (lane() == kWarp - 1) sums[warp()] = mine;
    __syncthreads();
    const uint32_t of_warp = lane() < warps() ? sums[lane()] : 0, through = inclusive_sum(of_warp);
    total = __shfl_sync(kAllLanes, through, kWarp - 1);
    return __shfl_sync(kAllLanes, through - of_warp, warp()) + mine - x;
  }
  __device__ static uint32_t inclusive_sum(uint32_t x) {
    for (int step = 1; step < kWarp; step *= 2) {
      const uint32_t other = __shfl_up_sync(kAllLanes, x, step);
      if (lane() >= step) x += other;
    }
    return x;
  }

  // The lowest rank; bins are cleared.
  __device__ uint32_t begin() {
    for (uint32_t i = threadIdx.x; i < kBins / 4; i += threads()) reinterpret_cast<uint4*>(s_.bins)[i] = {};
    uint32_t least = kNever;
    each([&](uint32_t x) { least = min(least, x); });
    uint32_t* of_warps = s_.sums[round_++ % 2];
    least = __reduce_min_sync(kAllLanes, least);
    if (lane() == 0) of_warps[warp()] = least;
    __syncthreads();
    return __reduce_min_sync(kAllLanes, lane() < warps() ? of_warps[lane()] : kNever);
  }

  __device__ Cut cut() {
    uint32_t low = begin(), width = kNever - 1 - low, below = 0;  // what is left: ranks low to low + width
    for (bool first = true;; first = false) {
      const int shift = min(first ? kFirstShift : 32, max(0, 32 - __clz(width) - 12));
      static_assert(kBins == 1 << 12);
      const uint32_t last = min(width, (kBins << shift) - 1u);
      each([&](uint32_t x) {
        if (x - low <= last) atomicAdd(&s_.bins[(x - low) >> shift], 1u);
      });
      __syncthreads();
      const uint32_t counted = find_bin(wanted_ - below);
      if (below + counted < wanted_) {
        below += counted;
        low += last + 1;
        width -= last + 1;
        continue;
      }
      low += s_.bin << shift;
      below += s_.before;
      if (shift == 0) return {low, below};
      width = min(width, (1u << shift) - 1);
    }
  }

  // Tells the bin with which `wanted` ranks are reached, if they are; returns how many all bins hold. Clears them.
  __device__ uint32_t find_bin(uint32_t wanted) {
    const int each = static_cast<int>(kBins) / threads();  // of a thread, a multiple of 4
    auto* mine = reinterpret_cast<uint4*>(s_.bins + threadIdx.x * each);
    uint32_t sum = 0;
    for (int i = 0; i < each / 4; ++i) sum += mine[i].x + mine[i].y + mine[i].z + mine[i].w;
    uint32_t total, before = sum_before(sum, total);
    const bool here = before < wanted && wanted <= before + sum;
    for (int i = 0; i < each / 4; ++i) {
      const uint4 four = mine[i];
      mine[i] = {};
      const uint32_t counts[] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (here && before < wanted && wanted <= before + counts[j]) s_.bin = threadIdx.x * each + 4 * i + j, s_.before = before;
        before += counts[j];
      }
    }
    __syncthreads();
    return total;
  }

  // All blocks lower than the limit, and the first of those at it until all that are wanted are there: a bit a block, counted.
  __device__ void write_below(const Cut& kept, int32_t* units) {
    const uint32_t at_limit = wanted_ - kept.below;
    uint32_t below_before = 0, equal_before = 0;
    for (int32_t from = 0; from < count_; from += kWarp * threads()) {
      const int32_t chunk = min(count_ - from, kWarp * threads());
      for (int i = threadIdx.x; i - lane() < chunk; i += threads()) {
        const uint32_t x = i < chunk ? ranks_[from + i] : kNever;
        const uint32_t below = __ballot_sync(kAllLanes, x < kept.limit), equal = __ballot_sync(kAllLanes, x == kept.limit);
        if (lane() == 0) s_.below[i / kWarp] = below, s_.equal[i / kWarp] = equal;
      }
      __syncthreads();
      const bool mine = static_cast<int>(threadIdx.x) * kWarp < chunk;
      const uint32_t below = mine ? s_.below[threadIdx.x] : 0, equal = mine ? s_.equal[threadIdx.x] : 0;
      uint32_t total;
      const uint32_t before = sum_before(__popc(below) << 16 | __popc(equal), total);
      uint32_t b = below_before + (before >> 16), e = equal_before + (before & 0xffffu);
      for (uint32_t bits = below | equal; bits != 0; bits &= bits - 1) {
        const uint32_t bit = bits & -bits;
        const bool is_below = (below & bit) != 0;
        if (is_below || e < at_limit) units[b + min(e, at_limit)] = first_ + from + kWarp * threadIdx.x + __ffs(bit) - 1;
        b += is_below;
        e += !is_below;
      }
      below_before += total >> 16;
      equal_before += total & 0xffffu;
    }
  }

  const uint32_t* ranks_;
  const int32_t count_, wanted_, first_;
  Shared& s_;
  int round_ = 0;
};

// What needs no score: a list's length and its windows.
__device__ inline void write_windows(const Quota& q, int32_t* units, int32_t* count) {
  if (threadIdx.x == 0) *count = q.kept;
  for (int i = threadIdx.x; i < q.init; i += blockDim.x) units[i] = i;
  for (int i = threadIdx.x; i < q.local; i += blockDim.x) units[q.kept - q.local + i] = q.blocks - q.local + i;
}

}  // namespace fovea::cuda::hash
