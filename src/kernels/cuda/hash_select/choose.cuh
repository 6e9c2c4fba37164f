// The best blocks of a list, exactly and in order, by one thread block. Scores are ranks: integers of 32 bits, the lower the
// better.
//
// A range of ranks is halved, where a round is a count and one barrier, until as many as are wanted lie below. Of a long list that
// is done first with the lowest rank of each thread alone: some more than the wanted of those bound what may be kept at all, hardly
// more ranks than that. These are gathered and, where they are few, each compared with all others.
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
    uint32_t sums[2][kWarp], least[kWarp], most[kWarp];  // of a warp; sums alternate: one barrier a round
    uint32_t found, limit, below_limit;
    alignas(16) uint32_t candidates[kSelectThreads];
    uint32_t below[kSelectThreads], equal[kSelectThreads];  // a bit a rank
  };

  // ranks: [q.ranked()], of the blocks from q.init on; writes behind them in shared memory are done.
  __device__ Chooser(const Quota& q, const uint32_t* ranks, Shared& shared)
      : ranks_(ranks), count_(q.ranked()), wanted_(q.by_rank()), first_(q.init), s_(shared) {}

  // Writes the list's entries [q.init, q.init + q.by_rank()).
  __device__ void write(int32_t* units) {
    uint32_t mine = kNever;
    each([&](uint32_t x) { mine = min(mine, x); });
    Range range = range_of(mine);
    int32_t held = count_;  // ranks that threads hold one each, if they fit
    if (held > threads() && wanted_ <= threads() / 2) {
      const uint32_t slack = max(wanted_ / 4, 16);
      range.most = cut(range, wanted_, wanted_ + slack, [&](uint32_t x) { return uint32_t{mine <= x}; }).last(wanted_);
      held = gather(range.most, mine);
    } else if (held > threads()) {
      range.most = kNever - 1;
    }
    const Cut kept = held <= min(kFew, threads()) ? cut_of_few(mine, held)
                     : held <= threads()          ? cut(range, wanted_, wanted_, [&](uint32_t x) { return uint32_t{mine <= x}; })
                                                  : cut(range, wanted_, wanted_, [&](uint32_t x) { return within(x); });
    write_below(kept, units + first_);
  }

 private:
  static constexpr int kFew = 256;  // ranks that are each compared with all others

  struct Range {
    uint32_t least, most;
  };
  // `below` ranks are lower than `limit`.
  struct Cut {
    uint32_t limit, below;
    // The highest rank of at least `wanted`.
    __device__ uint32_t last(uint32_t wanted) const { return below >= wanted ? limit - 1 : limit; }
  };

  __device__ static int threads() { return static_cast<int>(blockDim.x); }
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % kWarp; }
  __device__ static int warp() { return static_cast<int>(threadIdx.x) / kWarp; }
  __device__ static int warps() { return threads() / kWarp; }

  template <typename Visit>
  __device__ void each(const Visit& visit) const {
    for (int i = threadIdx.x; i < count_; i += threads()) visit(ranks_[i]);
  }
  __device__ uint32_t within(uint32_t limit) const {
    uint32_t n = 0;
    each([&](uint32_t x) { n += x <= limit; });
    return n;
  }

  // Over the thread block, in all threads.
  __device__ uint32_t sum(uint32_t x) {
    uint32_t* sums = s_.sums[round_++ % 2];
    x = __reduce_add_sync(kAllLanes, x);
    if (lane() == 0) sums[warp()] = x;
    __syncthreads();
    return __reduce_add_sync(kAllLanes, lane() < warps() ? sums[lane()] : 0);
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

  // Of the threads' lowest ranks.
  __device__ Range range_of(uint32_t mine) {
    const uint32_t least = __reduce_min_sync(kAllLanes, mine), most = __reduce_max_sync(kAllLanes, mine == kNever ? 0 : mine);
    if (lane() == 0) s_.least[warp()] = least, s_.most[warp()] = most;
    if (threadIdx.x == 0) s_.found = 0;
    __syncthreads();
    return {__reduce_min_sync(kAllLanes, lane() < warps() ? s_.least[lane()] : kNever),
            __reduce_max_sync(kAllLanes, lane() < warps() ? s_.most[lane()] : 0)};
  }

  // The first rank found at which `least` to `most` are lower, or where there is none, that of the `least`-th lowest. At least so
  // many lie in the range.
  template <typename Within>
  __device__ Cut cut(Range range, uint32_t least, uint32_t most, const Within& within) {
    uint32_t below = 0;
    while (range.least < range.most && below < least) {
      const uint32_t middle = range.least + (range.most - range.least) / 2, n = sum(within(middle));
      if (n > most) {
        range.most = middle;
      } else {
        range.least = middle + 1;
        below = n;
      }
    }
    return {range.least, below};
  }

  // Where `held` threads have a rank each: that of the last of the wanted.
  __device__ Cut cut_of_few(uint32_t mine, int32_t held) {
    if (threadIdx.x < kFew) s_.candidates[threadIdx.x] = mine;
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < held) {
      uint32_t below = 0, within = 0;
      for (int i = 0; i < held; i += 4) {  // what is not there is kNever
        const uint4 four = *reinterpret_cast<const uint4*>(s_.candidates + i);
        below += (four.x < mine) + (four.y < mine) + (four.z < mine) + (four.w < mine);
        within += (four.x <= mine) + (four.y <= mine) + (four.z <= mine) + (four.w <= mine);
      }
      if (static_cast<int32_t>(below) < wanted_ && wanted_ <= static_cast<int32_t>(within)) s_.limit = mine, s_.below_limit = below;
    }
    __syncthreads();
    return {s_.limit, s_.below_limit};
  }

  // How many ranks are `last` or lower; if they fit, each thread takes one of them.
  __device__ int32_t gather(uint32_t last, uint32_t& mine) {
    const uint32_t n = mine <= last ? within(last) : 0, before = inclusive_sum(n) - n;
    uint32_t at = 0;
    if (lane() == kWarp - 1 && before + n > 0) at = atomicAdd(&s_.found, before + n);
    at = __shfl_sync(kAllLanes, at, kWarp - 1) + before;
    if (n > 0) {
      each([&](uint32_t x) {
        if (x <= last && at < kSelectThreads) s_.candidates[at++] = x;
      });
    }
    __syncthreads();
    const int32_t found = static_cast<int32_t>(s_.found);
    mine = static_cast<int>(threadIdx.x) < found ? s_.candidates[threadIdx.x] : kNever;
    return found;
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
