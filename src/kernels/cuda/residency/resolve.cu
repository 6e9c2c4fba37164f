// Which columns the blocks of a wave get (ResolveParams): one CTA a KV head. Where nothing is missing it is four dependent loads.
#include "base/check.h"
#include "kernels/cuda/residency/residency.h"

namespace fovea::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarp = 32, kWarps = kThreads / kWarp;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int32_t kClaimed = -2;  // slot of a block that is on the list of misses

struct ResolveArgs {
  ResolveParams p;
  Selection selection;
};

struct Shared {
  int32_t misses;
  uint32_t sums[2][kWarps];  // the first index alternates: one barrier a round
};

__device__ uint32_t sum_of_cta(uint32_t x, int round, Shared& s) {
  const uint32_t of_warp = __reduce_add_sync(kAllLanes, x);
  if (threadIdx.x % kWarp == 0) s.sums[round % 2][threadIdx.x / kWarp] = of_warp;
  __syncthreads();
  return __reduce_add_sync(kAllLanes, s.sums[round % 2][threadIdx.x % kWarp]);
}

__device__ uint32_t min_of_cta(uint32_t x, int round, Shared& s) {
  const uint32_t of_warp = __reduce_min_sync(kAllLanes, x);
  if (threadIdx.x % kWarp == 0) s.sums[round % 2][threadIdx.x / kWarp] = of_warp;
  __syncthreads();
  return __reduce_min_sync(kAllLanes, s.sums[round % 2][threadIdx.x % kWarp]);
}

// The sum of x over the threads before this one; `total` over all.
__device__ uint32_t sum_before(uint32_t x, int round, Shared& s, uint32_t& total) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const auto inclusive = [&](uint32_t v) {
    for (int step = 1; step < kWarp; step *= 2) {
      const uint32_t other = __shfl_up_sync(kAllLanes, v, step);
      if (lane >= step) v += other;
    }
    return v;
  };
  const uint32_t mine = inclusive(x);
  if (lane == kWarp - 1) s.sums[round % 2][warp] = mine;
  __syncthreads();
  const uint32_t of_warp = s.sums[round % 2][lane], warps = inclusive(of_warp);
  total = __shfl_sync(kAllLanes, warps, kWarp - 1);
  return __shfl_sync(kAllLanes, warps - of_warp, warp) + mine - x;
}

// One KV head.
struct Head {
  const ResolveParams& p;
  const Selection& sel;
  Shared& shared;
  const int head;
  const uint32_t wave;
  int32_t* slot_of;
  int32_t* owner;
  uint32_t* stamp;
  int32_t* missed;   // [columns] blocks, as they were found
  int32_t* victims;  // [columns] ascending
  int round = 0;     // of sums

  __device__ Head(const ResolveArgs& a, Shared& s)
      : p(a.p),
        sel(a.selection),
        shared(s),
        head(static_cast<int>(blockIdx.x)),
        wave(p.wave + (p.wave_base ? *p.wave_base : 0)),
        slot_of(p.tables.slot_of + int64_t{head} * p.tables.blocks),
        owner(p.tables.owner + int64_t{head} * p.tables.columns),
        stamp(p.tables.stamp + int64_t{head} * p.tables.columns),
        missed(reinterpret_cast<int32_t*>(p.scratch + int64_t{head} * p.tables.columns)),
        victims(missed + p.tables.columns) {}

  // visit(row, unit, there) by all threads of a warp together; `there`: the thread has a unit.
  template <typename Visit>
  __device__ void each_unit(Visit visit) const {
    const int lists = sel.heads == HeadGroups::per_query_head ? sel.groups / p.tables.heads : 1;
    const int first = sel.heads == HeadGroups::all ? 0 : head * lists;
    const int cells = p.rows * lists * sel.capacity;
    for (int base = 0; base < cells; base += kThreads) {
      const int at = base + static_cast<int>(threadIdx.x), cell = min(at, cells - 1) / sel.capacity, i = at % sel.capacity;
      const int row = cell / lists;
      const int64_t list = int64_t{row} * sel.groups + first + cell % lists;
      const int len = p.row_len[row];
      bool there = at < cells && len > 0 && i < sel.counts[list];
      int unit = 0;
      if (there) {
        unit = sel.units[list * sel.capacity + i];
        const int64_t begin = p.window > 0 ? max(0, len - p.window) : 0;
        there = (int64_t{unit} + 1) * p.block_size > begin;
      }
      visit(row, unit, there);
    }
  }

  __device__ int32_t block_of(int row, int unit) const {
    return p.blocks.slots[p.row_seq[row] * p.blocks.seq_stride + head * p.blocks.head_stride + unit];
  }
  __device__ int32_t& slot_at(int row, int unit) const {
    return p.slots[int64_t{p.slots_by_row ? row : p.row_seq[row]} * p.seq_stride + head * p.head_stride + unit];
  }

  // Adds to counts[row][which] how many threads of the warp say so.
  __device__ void count(int row, int which, bool yes) const {
    if (!p.counts) return;
    int same;
    __match_all_sync(kAllLanes, row, &same);
    const unsigned votes = __ballot_sync(kAllLanes, yes);
    auto* to = reinterpret_cast<unsigned long long*>(p.counts + 2 * row + which);
    if (!same && yes) atomicAdd(to, 1ull);
    if (same && votes != 0 && threadIdx.x % kWarp == 0) atomicAdd(to, static_cast<unsigned long long>(__popc(votes)));
  }

  // Stamps what has a column and lists what has none, each once.
  __device__ void look_up() {
    each_unit([&](int row, int unit, bool there) {
      bool first = false;
      if (there) {
        const int32_t block = block_of(row, unit), column = slot_of[block];
        if (column >= 0) {
          if (stamp[column] != kPinnedStamp) stamp[column] = wave;
          slot_at(row, unit) = column;
        } else {
          first = atomicCAS(&slot_of[block], -1, kClaimed) == -1;
          if (first) {
            const int at = atomicAdd(&shared.misses, 1);
            if (at >= p.tables.columns) __trap();
            missed[at] = block;
          }
        }
      }
      count(row, 0, there);
      count(row, 1, first);
    });
  }

  // How many columns of the wave before have a stamp of at most `limit`.
  __device__ uint32_t not_above(uint32_t limit) {
    uint32_t mine = 0;
    for (int c = threadIdx.x; c < p.tables.columns; c += kThreads) mine += stamp[c] <= limit;
    return sum_of_cta(mine, round++, shared);
  }

  // The columns of the `wanted` oldest stamps below the wave, ties to the lower column.
  __device__ void find_victims(uint32_t wanted) {
    uint32_t low = kPinnedStamp, high = wave - 1, older = 0;
    for (int c = threadIdx.x; c < p.tables.columns; c += kThreads) low = min(low, stamp[c]);
    low = min_of_cta(low, round++, shared);
    while (low < high) {
      const uint32_t middle = low + (high - low) / 2, within = not_above(middle);
      if (within >= wanted) {
        high = middle;
      } else {
        low = middle + 1;
        older = within;
      }
    }
    const uint32_t at_limit = wanted - older;  // of those with stamp `low`
    uint32_t older_before = 0, equal_before = 0;
    for (int first = 0; first < p.tables.columns; first += kThreads) {
      const int c = first + static_cast<int>(threadIdx.x);
      const uint32_t mine = c < p.tables.columns ? stamp[c] : kPinnedStamp;
      uint32_t total;
      const uint32_t before = sum_before((mine < low ? 1u << 16 : 0u) + (mine == low), round++, shared, total);
      const uint32_t nearer = older_before + (before >> 16), equal = equal_before + (before & 0xffffu);
      if (mine < low || (mine == low && equal < at_limit)) victims[nearer + min(equal, at_limit)] = c;
      older_before += total >> 16;
      equal_before += total & 0xffffu;
    }
    __syncthreads();
    if (older_before + min(equal_before, at_limit) < wanted) __trap();  // the wave does not fit
  }

  // The lower block gets the lower column.
  __device__ void hand_out(int misses) {
    for (int i = threadIdx.x; i < misses; i += kThreads) {
      const int32_t block = missed[i];
      int rank = 0;
      for (int j = 0; j < misses; ++j) rank += missed[j] < block;
      const int32_t column = victims[rank];
      if (owner[column] >= 0) slot_of[owner[column]] = -1;
      owner[column] = block;
      slot_of[block] = column;
      stamp[column] = wave - min(wave - 1, p.fresh_age);
      p.misses[int64_t{head} * p.tables.columns + rank] = {block, column};
    }
  }

  __device__ void run() {
    if (threadIdx.x == 0) shared.misses = 0;
    __syncthreads();
    look_up();
    __syncthreads();
    const int misses = shared.misses;
    if (threadIdx.x == 0) p.num_misses[head] = misses;
    if (misses == 0) return;
    find_victims(misses);
    hand_out(misses);
    __syncthreads();
    each_unit([&](int row, int unit, bool there) {
      if (there) slot_at(row, unit) = __ldcg(&slot_of[block_of(row, unit)]);
    });
  }
};

__global__ void __launch_bounds__(kThreads) resolve_kernel(const __grid_constant__ ResolveArgs a) {
  __shared__ Shared shared;
  let_next_begin();
  wait_for_previous();
  Head(a, shared).run();
}

}  // namespace

void resolve(const ResolveParams& p, const Queue& queue) {
  const Selection& s = *p.selection;
  FOVEA_CHECK(s.kind == Selection::Kind::list && s.row_indptr == nullptr && s.tokens_per_unit == p.block_size);
  if (p.rows == 0) return;
  FOVEA_CHECK(int64_t{p.rows} * s.groups * s.capacity < INT32_MAX - kThreads);
  launch("resolve", resolve_kernel, dim3(p.tables.heads), dim3(kThreads), queue, ResolveArgs{p, s});
}

}  // namespace fovea::cuda
