// Candidates of a row, and the choice of the best of them by a group of threads. A candidate is its score's rank and its position
// in one number: no two of a row are equal, so what is best is unique, whatever the order in which they came.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/peers.cuh"

namespace fovea::cuda::dsa {

inline constexpr unsigned kAllLanes = 0xffffffffu;

// The better, the greater. A NaN is least, the two zeros are one, ties go to the lower position.
using Candidate = uint64_t;

__device__ inline Candidate candidate(float score, int32_t position) {
  const uint32_t bits = __float_as_uint(__fadd_rn(score, 0.0f));
  const uint32_t rank = score != score ? 0u : (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(rank) << 32 | ~static_cast<uint32_t>(position);
}
__device__ inline int32_t position_of(Candidate c) { return static_cast<int32_t>(~static_cast<uint32_t>(c)); }
// A NaN of the least rank.
__device__ inline float score_of(Candidate c) {
  const auto rank = static_cast<uint32_t>(c >> 32);
  return __uint_as_float((rank & 0x80000000u) != 0 ? rank & 0x7fffffffu : ~rank);
}

// What a later key must beat; at first, and after a cut that had to keep a NaN, nothing is beaten by it.
inline constexpr float kNoBound = __builtin_nanf("");
__device__ inline bool beats(float score, float bound) { return !(score <= bound); }

// kThreads of a CTA, whole warps that begin at a multiple of kThreads, with one of the CTA's numbered barriers.
template <int kCount>
struct Group {
  static constexpr int kThreads = kCount, kWarps = kCount / 32;
  int barrier = 0;

  __device__ static int rank() { return static_cast<int>(threadIdx.x) % kThreads; }
  __device__ void sync() const { asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory"); }
};

// Who makes one choice together: a group alone, or all threads of the CTAs of a cluster.
template <int kCount>
struct Alone : Group<kCount> {
  __device__ int peers() const { return 1; }
  __device__ void sync_all() const { this->sync(); }
  template <typename T>
  __device__ const T& of(const T& mine, int) const {
    return mine;
  }
};
template <int kCount>
struct Cluster : Group<kCount> {
  Peers all = Peers::of_this_block();
  __device__ int peers() const { return all.count; }
  __device__ void sync_all() const { all.sync(); }
  template <typename T>
  __device__ const T& of(const T& mine, int peer) const {
    return *all.at(&mine, peer);
  }
};

template <int kThreads>
struct ChoiceShared {
  static constexpr int kBins = 2 * kThreads;
  alignas(8) uint32_t bins[kBins];
  Candidate least[kThreads / 32], most[kThreads / 32];
  Candidate range[2];  // least and most of the CTA
  uint32_t totals[kThreads / 32];
  uint32_t bin, inside, above;  // where the last one kept was found
  uint32_t kept;
};

// The sum of x over the group's threads up to and with this one; `total` over all. Call it again after a barrier only.
template <int kThreads>
__device__ uint32_t sum_through(const Group<kThreads>& group, uint32_t x, ChoiceShared<kThreads>& s, uint32_t* total) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = group.rank() / 32;
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t other = __shfl_up_sync(kAllLanes, x, step);
    if (lane >= step) x += other;
  }
  if (lane == 31) s.totals[warp] = x;
  group.sync();
  *total = 0;
  for (int w = 0; w < kThreads / 32; ++w) {
    if (w == warp) x += *total;
    *total += s.totals[w];
  }
  return x;
}

// A bound that at least k of a row's candidates reach, and at most k + slack; there are at least k >= 1. each(visit) visits all of
// them, shared out among the team's threads. A round counts them in bins of equal width and goes on in the bin that the k-th lies
// in, until a bin's edge parts the best from the others. Every CTA finds the same.
template <typename Team, typename Each>
__device__ Candidate last_kept(const Team& team, uint32_t k, uint32_t slack, const Each& each, ChoiceShared<Team::kThreads>& s) {
  constexpr int kBins = ChoiceShared<Team::kThreads>::kBins, kBinBits = 32 - __builtin_clz(kBins - 1);
  const int rank = team.rank();
  Candidate low = ~Candidate{0}, high = 0;
  each([&](Candidate c) { low = min(low, c), high = max(high, c); });
  for (int step = 16; step > 0; step /= 2) {
    low = min(low, __shfl_xor_sync(kAllLanes, low, step));
    high = max(high, __shfl_xor_sync(kAllLanes, high, step));
  }
  if (rank % 32 == 0) s.least[rank / 32] = low, s.most[rank / 32] = high;
  team.sync();
  for (int w = 0; w < Team::kWarps; ++w) low = min(low, s.least[w]), high = max(high, s.most[w]);
  if (rank == 0) s.range[0] = low, s.range[1] = high;
  team.sync_all();
  for (int peer = 0; peer < team.peers(); ++peer) {
    low = min(low, team.of(s.range[0], peer));
    high = max(high, team.of(s.range[1], peer));
  }
  for (;;) {
    const int shift = max(0, 64 - __clzll(static_cast<int64_t>(high - low)) - kBinBits);
    for (int b = rank; b < kBins; b += Team::kThreads) s.bins[b] = 0;
    team.sync();
    each([&](Candidate c) {
      if (c >= low && c <= high) atomicAdd(&s.bins[(c - low) >> shift], 1u);
    });
    team.sync_all();
    const int upper = kBins - 1 - 2 * rank;  // this thread's bins are upper and the one below it
    uint32_t first = 0, second = 0;
    for (int peer = 0; peer < team.peers(); ++peer) {
      const uint2 bins = team.of(*reinterpret_cast<const uint2*>(&s.bins[upper - 1]), peer);
      first += bins.y, second += bins.x;
    }
    uint32_t total;
    const uint32_t through = sum_through<Team::kThreads>(team, first + second, s, &total), before = through - first - second;
    if (before < k && k <= through) {
      const bool in_first = k <= before + first;
      s.bin = in_first ? upper : upper - 1;
      s.inside = in_first ? first : second;
      s.above = in_first ? before : before + first;
    }
    team.sync_all();  // the bins were read, too
    low += static_cast<uint64_t>(s.bin) << shift;
    k -= s.above;
    if (s.inside - k <= slack) return low;
    const uint64_t width = (uint64_t{1} << shift) - 1;
    if (high - low > width) high = low + width;
  }
}

// A list of a row's candidates in global memory, in any order.
struct List {
  Candidate* entries;
  uint32_t* count;  // in shared memory

  // By a whole warp; there is room for 32.
  __device__ void append(bool take, Candidate c) const {
    const unsigned takers = __ballot_sync(kAllLanes, take);
    if (takers == 0) return;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    uint32_t at = 0;
    if (lane == 0) at = atomicAdd(count, static_cast<uint32_t>(__popc(takers)));
    at = __shfl_sync(kAllLanes, at, 0) + static_cast<uint32_t>(__popc(takers & ((1u << lane) - 1)));
    if (take) entries[at] = c;
  }

  // Leaves the best k, of at least k, and at most `slack` more. Returns the bound of those that come later. Between barriers of
  // the group. A thread keeps its first kHeld candidates in registers: a list of kHeld * kThreads is read once.
  template <int kHeld, int kThreads>
  __device__ float cut(const Alone<kThreads>& group, uint32_t k, uint32_t slack, ChoiceShared<kThreads>& s) const {
    constexpr uint32_t kChunk = kThreads * kHeld;
    const uint32_t size = *count, rank = static_cast<uint32_t>(group.rank());
    Candidate held[kHeld];
    load(held, rank, kThreads, size);
    const Candidate last = last_kept(
        group, k, slack,
        [&](auto visit) {
          visit_known(held, visit);
          for (uint32_t first = kChunk; first < size; first += kChunk) {
            Candidate more[kHeld];
            load(more, first + rank, kThreads, size);
            visit_known(more, visit);
          }
        },
        s);
    uint32_t kept = 0;
    for (uint32_t first = 0; first < size; first += kChunk) {
      if (first > 0) load(held, first + rank, kThreads, size);
      uint32_t mine = 0, total;
#pragma unroll
      for (int i = 0; i < kHeld; ++i) mine += held[i] >= last;
      uint32_t at = kept + sum_through(group, mine, s, &total) - mine;  // and what is overwritten was read by all
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        if (held[i] >= last) entries[at++] = held[i];
      }
      kept += total;
      group.sync();
    }
    if (rank == 0) *count = kept;
    return score_of(last);
  }

 private:
  template <int kHeld, typename Visit>
  __device__ static void visit_known(const Candidate (&mine)[kHeld], const Visit& visit) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (mine[i] != 0) visit(mine[i]);
    }
  }

  // 0, which is no candidate and below all, beyond the end.
  template <int kHeld>
  __device__ void load(Candidate (&mine)[kHeld], uint32_t first, uint32_t step, uint32_t size) const {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) mine[i] = first + i * step < size ? entries[first + i * step] : 0;
  }
};

}  // namespace fovea::cuda::dsa
