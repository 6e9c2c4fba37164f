// The best blocks of a list, exactly and in order, by eight warps. Scores are ranks: integers of 32 bits, the lower the better.
//
// The last rank that is kept is found by counting: ranks fall into bins of one width from the lowest on, the bin in which the wanted
// number is reached is cut into bins again, until it holds so few ranks that each can be compared with all others. The first bins
// cover two octaves of scores: mostly they are the only ones. Every instruction of more warps would cost more than they save.
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
  struct Shared {
    alignas(16) uint32_t sums[kChooserWarps];
    uint32_t bin, before, inside;  // where the wanted number is reached: the ranks before it and in it
    uint32_t found;
    uint32_t candidates[kWarp];
    alignas(16) uint32_t bins[kBins];  // 0 between rounds
    // Ranks, 32 of each thread, of which pieces of 16 bytes change places: no load meets a bank twice. Of longer lists a part.
    alignas(16) uint32_t staged[kStaged];
  };

  // Threads [0, kChooserThreads) of a thread block. ranks: [q.blocks], those of windows not read.
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

  // Ranks of blocks [first, first + kStaged) to shared memory; returns the lowest that this thread saw.
  __device__ uint32_t stage(int32_t first) {
    const int32_t end = min(kStaged, (q_.blocks - first + kWarp - 1) / kWarp * kWarp);
    uint32_t ranks[kStaged / kChooserThreads], least = kNever;  // all under way at once
#pragma unroll
    for (int j = 0; j < kStaged / kChooserThreads; ++j) {
      const int32_t block = first + static_cast<int32_t>(threadIdx.x) + j * kChooserThreads;
      ranks[j] = block >= q_.init && block < q_.blocks - q_.local ? __ldcg(ranks_ + block) : kNever;
    }
#pragma unroll
    for (int j = 0; j < kStaged / kChooserThreads; ++j) {
      const int32_t i = static_cast<int32_t>(threadIdx.x) + j * kChooserThreads;
      if (i < end) s_.staged[i ^ (i >> 5 & 7) << 2] = ranks[j];
      least = min(least, ranks[j]);
    }
    sync();
    return least;
  }

  // For each part of the list: visit(first block of this thread's 32, piece [0, 8), four ranks), then visited(first block).
  template <typename Visit, typename Visited>
  __device__ void each(const Visit& visit, const Visited& visited) {
    for (int32_t first = 0; first < q_.blocks; first += kStaged) {
      if (q_.blocks > kStaged) {
        sync();
        stage(first);
      }
      const int32_t mine = first + static_cast<int32_t>(threadIdx.x) * kWarp;
      if (mine < q_.blocks) {
        const auto* pieces = reinterpret_cast<const uint4*>(s_.staged) + threadIdx.x * 8;
#pragma unroll
        for (int i = 0; i < 8; ++i) visit(i, pieces[i ^ (threadIdx.x & 7)]);
      }
      visited(mine);
    }
  }
  template <typename Visit>
  __device__ void each_rank(const Visit& visit) {
    each([&](int, const uint4& four) { visit(four.x), visit(four.y), visit(four.z), visit(four.w); }, [](int32_t) {});
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
    total = 0;
    uint32_t before = mine - x;
#pragma unroll
    for (int w = 0; w < kChooserWarps; ++w) {
      if (w == warp()) before += total;
      total += s_.sums[w];
    }
    return before;
  }

  // The lowest rank. Bins are cleared, and what fits is staged.
  __device__ uint32_t begin() {
    for (int i = threadIdx.x; i < kBins / 4; i += kChooserThreads) reinterpret_cast<uint4*>(s_.bins)[i] = {};
    if (threadIdx.x == 0) s_.found = 0;
    uint32_t least = stage(0);
    for (int32_t first = kStaged; first < q_.blocks; first += kStaged) {
      sync();
      least = min(least, stage(first));
    }
    least = __reduce_min_sync(kAllLanes, least);
    if (lane() == 0) s_.sums[warp()] = least;
    sync();
#pragma unroll
    for (int w = 0; w < kChooserWarps; ++w) least = min(least, s_.sums[w]);
    return least;
  }

  __device__ Cut cut(uint32_t low) {
    uint32_t width = kNever - 1 - low, below = 0;  // what is left: ranks low to low + width
    for (bool first = true;; first = false) {
      const int shift = min(first ? kFirstShift : 32, max(0, 32 - __clz(width) - kBinBits));
      const uint32_t last = min(width, (uint32_t{kBins} << shift) - 1);
      each_rank([&](uint32_t x) {
        if (x - low <= last) atomicAdd(&s_.bins[(x - low) >> shift], 1u);
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
    }
  }

  // Tells the bin with which `wanted` ranks are reached, if they are; returns how many all bins hold. Clears them.
  __device__ uint32_t find_bin(uint32_t wanted) {
    constexpr int kEach = kBins / kChooserThreads;
    auto* mine = reinterpret_cast<uint4*>(s_.bins) + threadIdx.x * (kEach / 4);
    uint32_t counts[kEach], sum = 0, total;
#pragma unroll
    for (int i = 0; i < kEach; i += 4) {
      const uint4 four = mine[i / 4];
      mine[i / 4] = {};
      counts[i] = four.x, counts[i + 1] = four.y, counts[i + 2] = four.z, counts[i + 3] = four.w;
      sum += four.x + four.y + four.z + four.w;
    }
    uint32_t before = sum_before(sum, total);
    if (before < wanted && wanted <= before + sum) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (before < wanted && wanted <= before + counts[i]) {
          s_.bin = threadIdx.x * kEach + i, s_.before = before, s_.inside = counts[i];
        }
        before += counts[i];
      }
    }
    sync();
    return total;
  }

  // The cut among the ranks low to low + width, a warp's at most, beside `below` that are lower: every warp finds it.
  __device__ Cut cut_of_few(uint32_t low, uint32_t width, uint32_t below) {
    each_rank([&](uint32_t x) {
      if (x - low <= width) s_.candidates[atomicAdd(&s_.found, 1u)] = x;
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
    uint32_t below = 0, equal = 0;  // a bit a rank
    uint32_t below_before = 0, equal_before = 0;
    each(
        [&](int piece, const uint4& four) {
          const uint32_t ranks[] = {four.x, four.y, four.z, four.w};
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const uint32_t bit = 1u << (4 * piece + i);
            if (ranks[i] < kept.limit) below |= bit;
            if (ranks[i] == kept.limit) equal |= bit;
          }
        },
        [&](int32_t first) {
          uint32_t total;
          const uint32_t before = sum_before(__popc(below) << 16 | __popc(equal), total);
          uint32_t b = below_before + (before >> 16), e = equal_before + (before & 0xffffu);
          for (uint32_t bits = below | equal; bits != 0; bits &= bits - 1) {
            const uint32_t bit = bits & -bits;
            const bool is_below = (below & bit) != 0;
            if (is_below || e < at_limit) units[b + min(e, at_limit)] = first + __ffs(bit) - 1;
            b += is_below;
            e += !is_below;
          }
          below = equal = 0;
          below_before += total >> 16;
          equal_before += total & 0xffffu;
        });
  }

  const Quota q_;
  const uint32_t* ranks_;
  Shared& s_;
};

// What needs no score: a list's length and its windows.
__device__ inline void write_windows(const Quota& q, int32_t* units, int32_t* count) {
  if (threadIdx.x == 0) *count = q.kept;
  for (int i = threadIdx.x; i < q.init; i += blockDim.x) units[i] = i;
  for (int i = threadIdx.x; i < q.local; i += blockDim.x) units[q.kept - q.local + i] = q.blocks - q.local + i;
}

}  // namespace fovea::cuda::hash
