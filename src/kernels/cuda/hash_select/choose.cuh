// The best blocks of a list, exactly and in order, by 16 warps. Scores are ranks: integers of 32 bits, the lower the better.
//
// The last rank that is kept is found by counting: ranks fall into bins of one width from the lowest on, the bin in which the wanted
// number is reached is cut into bins again, until it holds so few ranks that each can be compared with all others. The first bins
// cover two octaves of scores: mostly they are the only ones. A thread holds 16 ranks in registers and asks them without branches:
// what counts here is how many instructions follow one another.
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
    return of(p, row, (p.row_len[row] + p.block_size - 1) / p.block_size);
  }
  __device__ static Quota of(const BlockChoice& p, int row, int32_t blocks) {
    const int32_t kept = min(p.k[row], blocks);
    if (kept == blocks) return {blocks, kept, kept, 0};
    const int32_t local = min(p.local_blocks, kept);
    return {blocks, kept, min(p.init_blocks, kept - local), local};
  }
};

class Chooser {
 public:
  struct Shared {
    uint32_t sums[kChooserWarps];
    uint32_t bin, before, inside;  // where the wanted number is reached: the ranks before it and in it
    uint32_t found;
    uint32_t candidates[kWarp];        // also what warps tell each other in shrink()
    alignas(16) uint32_t bins[kBins];  // 0 between rounds
  };

  // Threads [0, kChooserThreads) of a thread block. ranks: [q.blocks], on 16 bytes; those of windows are not asked.
  __device__ Chooser(const Quota& q, const uint32_t* ranks, Shared& shared) : q_(q), ranks_(ranks), s_(shared) {}

  // Writes the list's entries [q.init, q.init + q.by_rank()).
  __device__ void write(int32_t* units) {
    const uint32_t least = begin();
    write_below(cut(least), units + q_.init);
  }

 private:
  static constexpr int kFirstShift = 13;

  // `below` ranks, fewer than wanted, are lower than `limit`; with those at it there are as many as wanted.
  struct Cut {
    uint32_t limit, below;
  };

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % kWarp; }
  __device__ static int warp() { return static_cast<int>(threadIdx.x) / kWarp; }
  __device__ static void sync() { asm volatile("bar.sync 1, %0;" ::"n"(kChooserThreads) : "memory"); }
  __device__ uint32_t wanted() const { return q_.by_rank(); }

  // Takes this thread's ranks of blocks [first, first + kChosenAtOnce).
  __device__ void take(int32_t first) {
    first_ = first + static_cast<int32_t>(threadIdx.x) * kRanks;
    const int32_t end = q_.blocks - q_.local;
    const auto* from = reinterpret_cast<const uint4*>(ranks_ + first_);
#pragma unroll
    for (int i = 0; i < kRanks; i += 4) {
      uint4 four = {kNever, kNever, kNever, kNever};
      if (first_ + i < end) four = __ldcg(from + i / 4);
      mine_[i] = four.x, mine_[i + 1] = four.y, mine_[i + 2] = four.z, mine_[i + 3] = four.w;
    }
    if (first_ >= q_.init && first_ + kRanks <= end) return;
#pragma unroll
    for (int i = 0; i < kRanks; ++i) {
      if (first_ + i < q_.init || first_ + i >= end) mine_[i] = kNever;
    }
  }

  // visit() for every part of the list, with its ranks in mine_.
  template <typename Visit>
  __device__ void each_part(const Visit& visit) {
    if (q_.blocks <= kChosenAtOnce) return visit();
    for (int32_t first = 0; first < q_.blocks; first += kChosenAtOnce) {
      take(first);
      visit();
    }
  }

  // The sum over the threads before this one; `total` over all.
  __device__ uint32_t sum_before(uint32_t x, uint32_t& total) {
    uint32_t mine = x;
    for (int step = 1; step < kWarp; step *= 2) {
      const uint32_t other = __shfl_up_sync(kAllLanes, mine, step);
      if (lane() >= step) mine += other;
    }
    if (lane() == kWarp - 1) s_.sums[warp()] = mine;
    sync();
    const uint32_t of_warp = s_.sums[lane() % kChooserWarps];
    total = __reduce_add_sync(kAllLanes, lane() < kChooserWarps ? of_warp : 0);
    return __reduce_add_sync(kAllLanes, lane() < warp() ? of_warp : 0) + mine - x;
  }

  // The lowest rank. Bins are cleared.
  __device__ uint32_t begin() {
    take(0);
    for (int i = threadIdx.x; i < kBins / 4; i += kChooserThreads) reinterpret_cast<uint4*>(s_.bins)[i] = {};
    if (threadIdx.x == 0) s_.found = 0;
    uint32_t least = kNever;
    each_part([&] {
#pragma unroll
      for (int i = 0; i < kRanks; ++i) least = min(least, mine_[i]);
    });
    least = __reduce_min_sync(kAllLanes, least);
    if (lane() == 0) s_.sums[warp()] = least;
    sync();
    return __reduce_min_sync(kAllLanes, s_.sums[lane() % kChooserWarps]);
  }

  __device__ Cut cut(uint32_t low) {
    uint32_t width = kNever - 1 - low, below = 0;  // what is left: ranks low to low + width
    for (bool first = true;; first = false) {
      const int shift = min(first ? kFirstShift : 32, max(0, 32 - __clz(width) - kBinBits));
      const uint32_t last = min(width, (uint32_t{kBins} << shift) - 1);
      each_part([&] {
#pragma unroll
        for (int i = 0; i < kRanks; ++i) count(mine_[i] - low, last, shift);
      });
      sync();
      const uint32_t counted = find_bin(wanted() - below);
      if (below + counted < wanted()) {
        below += counted;
        low += last + 1;
        width -= last + 1;
        continue;
      }
      low += s_.bin << shift;
      below += s_.before;
      if (shift == 0) return {low, below};
      width = min(width, (1u << shift) - 1);
      if (s_.inside <= kWarp) return cut_of_few(low, width, below);
      shrink(low, width);  // scores of few bits are often equal
      if (width == 0) return {low, below};
    }
  }

  // One more in the bin of `offset`, if that is not beyond `last`.
  __device__ void count(uint32_t offset, uint32_t last, int shift) {
    const auto bin = static_cast<uint32_t>(__cvta_generic_to_shared(s_.bins)) + (offset >> shift) * 4;
    asm volatile("{ .reg .pred p; setp.le.u32 p, %0, %1; @p red.shared.add.u32 [%2], 1; }" ::"r"(offset), "r"(last), "r"(bin)
                 : "memory");
  }

  // Tells the bin with which `wanted` ranks are reached, if they are; returns how many all bins hold. Clears them.
  __device__ uint32_t find_bin(uint32_t wanted) {
    static_assert(kBins == 4 * kChooserThreads && 2 * kChooserWarps <= kWarp);
    uint4& mine = reinterpret_cast<uint4*>(s_.bins)[threadIdx.x];
    const uint4 four = mine;
    mine = {};
    const uint32_t counts[] = {four.x, four.y, four.z, four.w}, sum = four.x + four.y + four.z + four.w;
    uint32_t total, before = sum_before(sum, total);
    if (before < wanted && wanted <= before + sum) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (before < wanted && wanted <= before + counts[i]) {
          s_.bin = threadIdx.x * 4 + i, s_.before = before, s_.inside = counts[i];
        }
        before += counts[i];
      }
    }
    sync();
    return total;
  }

  // To the lowest and the highest rank of those between.
  __device__ void shrink(uint32_t& low, uint32_t& width) {
    uint32_t least = width, most = 0;  // beyond low
    each_part([&] {
#pragma unroll
      for (int i = 0; i < kRanks; ++i) {
        const uint32_t beyond = mine_[i] - low;
        least = min(least, beyond);
        if (beyond <= width) most = max(most, beyond);
      }
    });
    least = __reduce_min_sync(kAllLanes, least);
    most = __reduce_max_sync(kAllLanes, most);
    if (lane() == 0) s_.candidates[warp()] = least, s_.candidates[kChooserWarps + warp()] = most;
    sync();
    least = __reduce_min_sync(kAllLanes, s_.candidates[lane() % kChooserWarps]);
    most = __reduce_max_sync(kAllLanes, s_.candidates[kChooserWarps + lane() % kChooserWarps]);
    low += least;
    width = most - least;
  }

  // The cut among the ranks low to low + width, a warp's at most, beside `below` that are lower: every warp finds it.
  __device__ Cut cut_of_few(uint32_t low, uint32_t width, uint32_t below) {
    each_part([&] {
      uint32_t inside = 0;  // a bit a rank
#pragma unroll
      for (int i = 0; i < kRanks; ++i) inside |= uint32_t{mine_[i] - low <= width} << i;
      if (inside == 0) return;
#pragma unroll
      for (int i = 0; i < kRanks; ++i) {
        if ((inside >> i & 1) != 0) s_.candidates[atomicAdd(&s_.found, 1u)] = mine_[i];
      }
    });
    sync();
    const int found = static_cast<int>(s_.found);
    const uint32_t mine = lane() < found ? s_.candidates[lane()] : kNever;
    uint32_t lower = below, within = below;
    for (int i = 0; i < found; ++i) {
      const uint32_t other = __shfl_sync(kAllLanes, mine, i);
      lower += other < mine, within += other <= mine;
    }
    const int at = __ffs(__ballot_sync(kAllLanes, lower < wanted() && wanted() <= within && lane() < found)) - 1;
    return {__shfl_sync(kAllLanes, mine, at), __shfl_sync(kAllLanes, lower, at)};
  }

  // All blocks lower than the limit, and the first of those at it until all that are wanted are there.
  __device__ void write_below(const Cut& kept, int32_t* units) {
    const uint32_t at_limit = wanted() - kept.below;
    uint32_t below_before = 0, equal_before = 0;
    each_part([&] {
      uint32_t below = 0, equal = 0;  // a bit a rank
#pragma unroll
      for (int i = 0; i < kRanks; ++i) {
        below |= uint32_t{mine_[i] < kept.limit} << i;
        equal |= uint32_t{mine_[i] == kept.limit} << i;
      }
      uint32_t total;
      const uint32_t before = sum_before(__popc(below) << 16 | __popc(equal), total);
      uint32_t b = below_before + (before >> 16), e = equal_before + (before & 0xffffu);
      for (uint32_t bits = below | equal; bits != 0; bits &= bits - 1) {
        const uint32_t bit = bits & -bits;
        const bool is_below = (below & bit) != 0;
        if (is_below || e < at_limit) units[b + min(e, at_limit)] = first_ + __ffs(bit) - 1;
        b += is_below;
        e += !is_below;
      }
      below_before += total >> 16;
      equal_before += total & 0xffffu;
      if (q_.blocks > kChosenAtOnce) sync();  // before sums are others
    });
  }

  const Quota q_;
  const uint32_t* ranks_;
  Shared& s_;
  uint32_t mine_[kRanks];
  int32_t first_ = 0;  // block of mine_[0]
};

// What needs no score: a list's length and its windows. By so many threads, whose first has a number divided by theirs.
__device__ inline void write_windows(const Quota& q, int32_t* units, int32_t* count, int threads) {
  const int thread = static_cast<int>(threadIdx.x) % threads;
  if (thread == 0) *count = q.kept;
  for (int i = thread; i < q.init; i += threads) units[i] = i;
  for (int i = thread; i < q.local; i += threads) units[q.kept - q.local + i] = q.blocks - q.local + i;
}

}  // namespace fovea::cuda::hash
