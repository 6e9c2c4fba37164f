// The best blocks of a list, exactly and in order, by 16 warps. Scores are ranks: integers of 32 bits, the lower the better.
//
// Every thread holds 20 ranks in registers, of blocks far apart: neighbours often rank alike. A bound is found that the lowest ranks of
// as many threads as blocks are wanted meet, and not of many more: a barrier counts threads. What meets the bound is mostly a
// hundred ranks or two. They are put in the order of blocks and compared with one another, and what is kept is written from there; of
// more, the range is halved until the cut is found. In a decode step this code comes from memory each time: what counts is how many
// instructions there are.
#pragma once

#include <fovea/kernels/select.h>

#include <cstdint>

#include "kernels/cuda/hash_select/config.h"
#include "kernels/cuda/hash_select/hash_code.cuh"

namespace fovea::cuda::hash {

inline constexpr uint32_t kWorst = 0xff800000u;   // of ranks: that of the score -inf
inline constexpr uint32_t kNone = 0xfffffffeu;    // where there is no block
inline constexpr uint32_t kNotYet = 0xffffffffu;  // where one will be

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

// Ranks of a list, [blocks]; those of windows are not asked. In shared memory; in scratch, where others have written them; or in scratch
// where others still do, with kNotYet in the places of those that have not come, and again in all places when a choice has been made.
struct Ranks {
  enum class Place : uint8_t { shared, scratch, coming };
  uint32_t* of = nullptr;
  Place place = Place::scratch;
  int32_t looks = 1;     // for those that come; if they have not then, nothing is chosen
  uint32_t helpers = 0;  // threads that call mark_for(), which takes marking the places again off the chooser
};

class Chooser {
  // `below` ranks, no more than wanted, are lower than `limit`; with those at it there are as many as wanted.
  struct Cut {
    uint32_t limit, below;
  };

 public:
  static constexpr int kWords = kChosenAtOnce / kWarp;
  static_assert(kCandidates <= 2 * kWords);
  struct Shared {
    uint32_t sums[kChooserWarps], least[kChooserWarps], most[kChooserWarps];  // of warps
    alignas(16) uint32_t candidates[kCandidates];                             // in the order of blocks
    int32_t blocks[kCandidates];                                              // of candidates
    uint32_t words[2 * kWords];  // a bit a block, of two kinds; or how many ranks are lower than a candidate's
    uint32_t ranks[kChosenAtOnce];
  };

  // Threads [0, kChooserThreads) of a thread block.
  __device__ Chooser(const Quota& q, const Ranks& ranks, Shared& shared) : q_(q), ranks_(ranks), s_(shared) { ranks_.of += q.init; }

  __device__ static void sync() { asm volatile("bar.sync 1, %0;" ::"n"(kChooserThreads) : "memory"); }

  // Writes the list's entries [q.init, q.init + q.by_rank()). Returns false where ranks have not all come.
  __device__ bool write(int32_t* units) {
    Range range;
    if (!find_bound(range)) return false;
    const uint32_t found = collect(range.high);
    if (found <= kCandidates) {
      keep_lowest(found, units + q_.init);
    } else {
      write_below(cut_of_many(range), units + q_.init);
    }
    if (ranks_.place == Ranks::Place::coming && (in_parts(q_) || ranks_.helpers == 0)) {
      sync();
      mark_again(q_, ranks_.of, threadIdx.x, kChooserThreads);
    }
    return true;
  }

  // Threads [kChooserThreads, blockDim.x), beside a chooser that counts on them and writes. Returns as write() does.
  __device__ static bool mark_for(const Quota& q, uint32_t* ranks) {
    if (!all_have(true, blockDim.x)) return false;
    if (!in_parts(q)) mark_again(q, ranks + q.init, threadIdx.x - kChooserThreads, blockDim.x - kChooserThreads);
    return true;
  }

 private:
  struct Range {
    uint32_t low, high;
  };
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % kWarp; }
  __device__ static int warp() { return static_cast<int>(threadIdx.x) / kWarp; }
  __device__ static uint32_t count_threads(bool that) {
    uint32_t count;
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; bar.red.popc.u32 %0, 1, %2, p; }"
                 : "=r"(count)
                 : "r"(uint32_t{that}), "n"(kChooserThreads)
                 : "memory");
    return count;
  }
  __device__ uint32_t wanted() const { return q_.by_rank(); }
  __device__ static bool in_parts(const Quota& q) { return q.ranked() > kChosenAtOnce; }
  __device__ static void mark_again(const Quota& q, uint32_t* ranks, int32_t thread, int32_t threads) {
    for (int32_t i = thread; i < q.ranked(); i += threads) ranks[i] = kNotYet;
  }
  // Whether all of so many threads have their ranks.
  __device__ static bool all_have(bool mine, uint32_t threads) {
    uint32_t all;
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; bar.red.and.pred p, %3, %2, p; selp.u32 %0, 1, 0, p; }"
                 : "=r"(all)
                 : "r"(uint32_t{mine}), "r"(threads), "r"(threads == kChooserThreads ? 1 : 2)
                 : "memory");
    return all != 0;
  }

  // This thread's ranks of a part. Of those in scratch no cache of this multiprocessor is asked. Returns whether all are there.
  __device__ bool take(int32_t first) {
    const int32_t at = first + static_cast<int32_t>(threadIdx.x), there = q_.ranked() - at;
    bool all = true;
    if (ranks_.place == Ranks::Place::shared) {
#pragma unroll
      for (int i = 0; i < kRanks; ++i) mine_[i] = i * kChooserThreads < there ? ranks_.of[at + i * kChooserThreads] : kNone;
    } else {
      const uint32_t* mine = ranks_.of + at;
      asm volatile("" : "+l"(mine));  // or the compiler adds up each address anew
      int32_t looks = ranks_.looks;
#pragma unroll 1
      do {  // all are asked for before the first is looked at: each takes most of a microsecond
#pragma unroll
        for (int i = 0; i < kRanks; ++i) mine_[i] = i * kChooserThreads < there ? look(mine + i * kChooserThreads) : kNone;
        uint32_t worst = 0;
#pragma unroll
        for (int i = 0; i < kRanks; ++i) worst = max(worst, mine_[i]);
        all = worst != kNotYet;
      } while (!all && --looks > 0);
    }
#pragma unroll
    for (int i = 0; i < kRanks; ++i) s_.ranks[i * kChooserThreads + threadIdx.x] = mine_[i];
    return all;
  }
  __device__ static uint32_t look(const uint32_t* at) {
    uint32_t rank;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(rank) : "l"(at));
    return rank;
  }

  // visit(first) for every part of the list, with this thread's ranks of it in mine_: of blocks first + i * kChooserThreads +
  // threadIdx.x. They stay there where there is one part. Returns whether all had come.
  template <typename Visit>
  __device__ bool each_part(bool again, const Visit& visit) {
    bool all = true;
#pragma unroll 1
    for (int32_t first = 0; first < q_.ranked(); first += kChosenAtOnce) {
      if (!again || in_parts(q_)) all = take(first) && all;
      visit(first);
    }
    return all;
  }

  // Two instructions, in no way merged with others that compare the same.
  __device__ static void add_if_lower(uint32_t& sum, uint32_t rank, uint32_t than) {
    asm("{ .reg .pred p; setp.lt.u32 p, %1, %2; @p add.u32 %0, %0, 1; }" : "+r"(sum) : "r"(rank), "r"(than));
  }
  // The sum over the lanes up to this one.
  __device__ static uint32_t sum_in_warp(uint32_t x) {
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const uint32_t other = __shfl_up_sync(kAllLanes, x, step);
      if (lane() >= step) x += other;
    }
    return x;
  }

  // The lowest rank, and one that those of `wanted` threads or somewhat more are not above; where threads do not suffice, none is. False
  // where ranks have not all come.
  __device__ bool find_bound(Range& range) {
    s_.candidates[threadIdx.x] = kNone;
    uint32_t best = kNone;
    const bool all = each_part(false, [&](int32_t) {
#pragma unroll
      for (int i = 0; i < kRanks; ++i) best = min(best, mine_[i]);
    });
    const uint32_t least = __reduce_min_sync(kAllLanes, best), most = __reduce_max_sync(kAllLanes, best == kNone ? 0 : best);
    if (lane() == 0) s_.least[warp()] = least, s_.most[warp()] = most;
    if (!all_have(all, kChooserThreads + ranks_.helpers)) return false;
    uint32_t there = min(q_.ranked(), kChooserThreads);  // threads that have any
    range = {__reduce_min_sync(kAllLanes, s_.least[lane() % kChooserWarps]), kWorst};
    if (there < wanted()) return true;
    range.high = __reduce_max_sync(kAllLanes, s_.most[lane() % kChooserWarps]);
    const uint32_t enough = wanted() + wanted() / 8 + 4;
#pragma unroll 1
    for (uint32_t low = range.low; low < range.high && there > enough;) {
      const uint32_t middle = low + (range.high - low) / 2, count = count_threads(best <= middle);
      if (count < wanted()) {
        low = middle + 1;
      } else {
        range.high = middle, there = count;
      }
    }
    return true;
  }

  // A bit for each block of the part at hand that is `that`: of 32 blocks a thread, beside how many those before have.
  struct Word {
    uint32_t bits, before, all;
  };
  template <typename That>
  __device__ Word word_of(const That& that) {
    mark(s_.words, that);
    sync();
    const uint32_t bits = threadIdx.x < kWords ? s_.words[threadIdx.x] : 0, count = __popc(bits);
    const uint32_t up_to = sum_in_warp(count);
    if (lane() == kWarp - 1) s_.sums[warp()] = up_to;
    sync();
    const uint32_t of_warp = s_.sums[lane() % kChooserWarps];
    return {bits, __reduce_add_sync(kAllLanes, lane() < warp() ? of_warp : 0) + up_to - count,
            __reduce_add_sync(kAllLanes, lane() < kChooserWarps ? of_warp : 0)};
  }

  // Ranks up to `high` become candidates, in the order of blocks, if no more than fit. Returns how many there are.
  __device__ uint32_t collect(uint32_t high) {
    uint32_t found = 0;
    each_part(true, [&](int32_t first) {
      const Word word = word_of([&](uint32_t rank) { return rank <= high; });
      uint32_t at = found + word.before;
      found += word.all;
      s_.words[threadIdx.x] = 0;  // for keep_lowest()
#pragma unroll 1
      for (uint32_t bits = found <= kCandidates ? word.bits : 0; bits != 0; bits &= bits - 1, ++at) {
        const int32_t block = static_cast<int32_t>(threadIdx.x) * kWarp + __ffs(bits) - 1;
        s_.candidates[at] = s_.ranks[block];
        s_.blocks[at] = q_.init + first + block;
      }
      if (in_parts(q_)) sync();  // before ranks, words and sums are others
    });
    sync();
    return found;
  }

  // Where all that can be kept are candidates: those are, that not as many as are wanted are lower than. Of equal ranks the first counts
  // as the lower. A warp compares 32 with 32 others at a time, and as many warps as there are share what the same 32 are compared with.
  __device__ void keep_lowest(uint32_t found, int32_t* units) {
    const uint32_t chunks = (found + kWarp - 1) / kWarp, turns = kChooserWarps / chunks, own = warp() % chunks,
                   turn = warp() / chunks;
    if (turn < turns) {
      const uint32_t mine = s_.candidates[own * kWarp + lane()];
      uint32_t lower[4] = {};  // one sum would wait for itself, and each load for the sums
#pragma unroll 1
      for (uint32_t chunk = turn; chunk < chunks; chunk += turns) {  // behind the last there are ranks that are never lower
        const uint32_t than = mine + (chunk < own);
        uint4 four[kWarp / 4];
#pragma unroll
        for (int j = 0; j < kWarp / 4; ++j) four[j] = reinterpret_cast<const uint4*>(s_.candidates + chunk * kWarp)[j];
#pragma unroll
        for (int j = 0; j < kWarp / 4; ++j) {
          add_if_lower(lower[0], four[j].x, than);
          add_if_lower(lower[1], four[j].y, than);
          add_if_lower(lower[2], four[j].z, than);
          add_if_lower(lower[3], four[j].w, than);
        }
        if (chunk == own) lower[0] += __popc(__match_any_sync(kAllLanes, mine) & ((1u << lane()) - 1));
      }
      const uint32_t all = lower[0] + lower[1] + lower[2] + lower[3];
      if (turns == 1) {
        s_.words[own * kWarp + lane()] = all;
      } else {
        atomicAdd(&s_.words[own * kWarp + lane()], all);
      }
    }
    sync();
    const uint32_t kept = __ballot_sync(kAllLanes, threadIdx.x < found && s_.words[threadIdx.x] < wanted());
    if (lane() == 0) s_.sums[warp()] = __popc(kept);
    sync();
    const uint32_t before = __reduce_add_sync(kAllLanes, lane() < warp() ? s_.sums[lane() % kChooserWarps] : 0);
    if ((kept >> lane() & 1) != 0) units[before + __popc(kept & ((1u << lane()) - 1))] = s_.blocks[threadIdx.x];
  }

  // The cut between the bounds, the higher of which as many ranks as are wanted do not exceed.
  __device__ Cut cut_of_many(Range range) {
    uint32_t below = 0;
    uint32_t *sums = s_.least, *others = s_.most;
#pragma unroll 1
    while (range.low < range.high) {
      const uint32_t middle = range.low + (range.high - range.low) / 2;
      uint32_t count = 0;
      each_part(true, [&](int32_t) {
#pragma unroll
        for (int i = 0; i < kRanks; ++i) count += mine_[i] <= middle;
      });
      count = __reduce_add_sync(kAllLanes, count);
      if (lane() == 0) sums[warp()] = count;
      sync();
      count = __reduce_add_sync(kAllLanes, lane() < kChooserWarps ? sums[lane()] : 0);
      uint32_t* next = others;  // while some still read
      others = sums, sums = next;
      if (count == wanted()) return {middle + 1, count};
      if (count < wanted()) {
        range.low = middle + 1, below = count;
      } else {
        range.high = middle;
      }
    }
    return {range.low, below};
  }

  // All blocks lower than the limit, and the first of those at it until all that are wanted are there.
  __device__ void write_below(const Cut& kept, int32_t* units) {
    const uint32_t at_limit = wanted() - kept.below;
    uint32_t below_before = 0, equal_before = 0;
    each_part(true, [&](int32_t first) {
      mark(s_.words, [&](uint32_t rank) { return rank < kept.limit; });
      if (at_limit > 0) mark(s_.words + kWords, [&](uint32_t rank) { return rank == kept.limit; });
      sync();
      const bool mine = threadIdx.x < kWords;
      const uint32_t below = mine ? s_.words[threadIdx.x] : 0;  // of 32 blocks
      const uint32_t equal = mine && at_limit > 0 ? s_.words[kWords + threadIdx.x] : 0;
      const uint32_t count = __popc(below) << 16 | __popc(equal), up_to = sum_in_warp(count);
      if (lane() == kWarp - 1) s_.sums[warp()] = up_to;
      sync();
      const uint32_t of_warp = s_.sums[lane() % kChooserWarps];
      const uint32_t before = __reduce_add_sync(kAllLanes, lane() < warp() ? of_warp : 0) + up_to - count;
      uint32_t b = below_before + (before >> 16), e = equal_before + (before & 0xffffu);
      const int32_t first_of_word = q_.init + first + static_cast<int32_t>(threadIdx.x) * kWarp;
#pragma unroll 1
      for (uint32_t bits = below | equal; bits != 0; bits &= bits - 1) {
        const uint32_t bit = bits & -bits;
        const bool is_below = (below & bit) != 0;
        if (is_below || e < at_limit) units[b + min(e, at_limit)] = first_of_word + __ffs(bit) - 1;
        b += is_below;
        e += !is_below;
      }
      if (!in_parts(q_)) return;
      const uint32_t total = __reduce_add_sync(kAllLanes, lane() < kChooserWarps ? of_warp : 0);
      below_before += total >> 16;
      equal_before += total & 0xffffu;
      sync();  // before words and sums are others
    });
  }
  // Sets the bits of those blocks of the part at hand.
  template <typename That>
  __device__ void mark(uint32_t* words, const That& that) {
#pragma unroll
    for (int i = 0; i < kRanks; ++i) {
      const uint32_t bits = __ballot_sync(kAllLanes, that(mine_[i]));
      if (lane() == 0) words[i * kChooserWarps + warp()] = bits;
    }
  }

  const Quota q_;
  Ranks ranks_;  // behind the first window
  Shared& s_;
  uint32_t mine_[kRanks];
};

// What needs no score: a list's length and its windows. By so many threads, whose first has a number divided by theirs.
__device__ inline void write_windows(const Quota& q, int32_t* units, int32_t* count, int threads) {
  const int thread = static_cast<int>(threadIdx.x) % threads;
  if (thread == 0) *count = q.kept;
  for (int i = thread; i < q.init; i += threads) units[i] = i;
  for (int i = thread; i < q.local; i += threads) units[q.kept - q.local + i] = q.blocks - q.local + i;
}

}  // namespace fovea::cuda::hash
