// A token's rank is one integer, (logit descending, id ascending), and its weight exp((logit - top) /
// temperature) is held in units of 2^-44. Masses are sums of integers, the same in whatever order they are
// added, and a token of less than half a unit is not there. What top_k and top_p keep is "rank <= last";
// `last` is found by a histogram over the distance to the top logit and by sorting the few tokens of the bin
// in which the count or the mass is reached.
//
// Every row's best token is found by a small kernel of many blocks; that of a greedy row is it. Other rows go
// on in a cluster of blocks each, whose shared memories are read by each other: one multiprocessor alone is
// busy with the arithmetic of 128K logits for longer than a small model's layer takes. Every block finds the
// same answers.
#include <algorithm>
#include <string>

#include "base/check.h"
#include "device/cuda/cuda_device.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/peers.cuh"
#include "kernels/cuda/sample/row.cuh"
#include "kernels/cuda/sample/sample.h"

namespace fovea::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kClusterMax = 8;
constexpr int kBins = 2048;            // of a histogram; a power of two
constexpr int kDigitBits = 11;         // log2(kBins)
constexpr float kBinsPerUnit = 64.0f;  // of distance
constexpr float kFarthest = 31.0f;     // exp(-31) is 0.6 of 1 / kMassUnit; kFarthest * kBinsPerUnit < kBins
constexpr float kMassUnit = 0x1p44f;
constexpr int kListMax = 2048;  // tokens sorted at once; a power of two
constexpr int kTiles = 1024;    // pieces of the vocabulary in the last walk
constexpr int kUnroll = 16;     // loads of a thread in flight
constexpr int32_t kVocabMax = 1 << (2 * kDigitBits);

// False for what is too far from the top to have a mass, and where the distance is no number.
__device__ inline bool is_there(float distance) { return distance <= kFarthest; }
__device__ inline uint64_t mass_of(float weight) { return __float2ull_rn(weight * kMassUnit); }
__device__ inline uint64_t mass_at(float distance) { return mass_of(expf(-distance)); }
__device__ inline int bin_of(float distance) { return static_cast<int>(distance * kBinsPerUnit); }

struct Tally {
  uint64_t mass = 0;
  uint32_t count = 0;

  __device__ Tally operator+(const Tally& o) const { return {mass + o.mass, count + o.count}; }
};

// 64-bit sums as two 32-bit halves: shared memory adds only those by itself.
struct alignas(16) Bins {
  uint32_t count[kBins];
  uint32_t low[kBins];
  uint32_t high[kBins];

  __device__ void add(int bin, uint64_t mass) {
    atomicAdd(&count[bin], 1u);
    const auto part = static_cast<uint32_t>(mass);
    const uint32_t carry = atomicAdd(&low[bin], part) > ~part ? 1 : 0;
    const uint32_t rest = static_cast<uint32_t>(mass >> 32) + carry;
    if (rest) atomicAdd(&high[bin], rest);
  }
  // each += the four bins from 4 * group on: 16 bytes at a time, other blocks' memory is slow to answer.
  __device__ void add_to(Tally (&each)[4], int group) const {
    const uint4 c = reinterpret_cast<const uint4*>(count)[group];
    const uint4 l = reinterpret_cast<const uint4*>(low)[group], h = reinterpret_cast<const uint4*>(high)[group];
    each[0] = each[0] + Tally{(static_cast<uint64_t>(h.x) << 32) + l.x, c.x};
    each[1] = each[1] + Tally{(static_cast<uint64_t>(h.y) << 32) + l.y, c.y};
    each[2] = each[2] + Tally{(static_cast<uint64_t>(h.z) << 32) + l.z, c.z};
    each[3] = each[3] + Tally{(static_cast<uint64_t>(h.w) << 32) + l.w, c.w};
  }
};

struct Scratch {
  union {
    Bins bins;
    uint64_t list[kListMax];  // of all blocks, sorted
    uint64_t tiles[kTiles];   // this block's part of them
  };
  uint64_t mine[kListMax];  // the list of this block's tokens
  uint32_t length;          // of `mine`
  uint64_t best[kWarps];
  Tally warp[kWarps];
  Tally found_before;
  uint64_t found_rank;
  int found_index;
  uint32_t found_count;
};

__device__ inline int tile_length(const Row& row) { return ceil_div(ceil_div(row.vocab, kTiles), 32) * 32; }

// f(id, value) for every token of the row that is this block's, some loads at once: of the tiles that it walks in the end, so that it
// finds them in its own cache.
template <typename F>
__device__ void for_each_token(const Row& row, const Peers& peers, F&& f) {
  const int own = kTiles / peers.count * tile_length(row), end = min((peers.rank + 1) * own, row.vocab);
  for (int base = peers.rank * own + threadIdx.x; base < end; base += kUnroll * kThreads) {
    float values[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int id = base + u * kThreads;
      values[u] = id < end ? row.value(id) : 0.0f;
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int id = base + u * kThreads;
      if (id < end) f(id, values[u]);
    }
  }
}

__device__ uint64_t best_rank(const Row& row, const Peers& peers, Scratch& s) {
  uint64_t best = kWorst;
  for_each_token(row, peers, [&](int id, float value) { best = min(best, rank_of(value, id)); });
  best = best_of_warp(best);
  const int lane = threadIdx.x % 32;
  if (lane == 0) s.best[threadIdx.x / 32] = best;
  peers.sync();
  best = kWorst;
#pragma unroll
  for (int i = 0; i < kWarps * kClusterMax; i += 32) {  // all at once: other blocks' memory is slow to answer
    const int from = (i + lane) / kWarps;
    if (from < peers.count) best = min(best, *peers.at(&s.best[lane % kWarps], from));
  }
  return best_of_warp(best);
}

// The sum over the threads before this one; `total` becomes the block's.
__device__ Tally exclusive_scan(Tally mine, Tally& total, Scratch& s) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  Tally sum = mine;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const Tally other{__shfl_up_sync(~0u, sum.mass, step), __shfl_up_sync(~0u, sum.count, step)};
    if (lane >= step) sum = sum + other;
  }
  __syncthreads();
  if (lane == 31) s.warp[warp] = sum;
  __syncthreads();
  Tally before{sum.mass - mine.mass, sum.count - mine.count};
  total = {};
#pragma unroll 4
  for (int w = 0; w < kWarps; ++w) {
    if (w == warp) before = before + total;
    total = total + s.warp[w];
  }
  return before;
}

// What a head of the ranking must reach: a number of tokens, or a share of the mass of them all.
struct Goal {
  uint32_t count = 0;  // 0: it is the mass
  float share = 0.0f;
  uint64_t mass = 0;  // of the share, once the total is known

  __device__ void set_total(uint64_t total) {
    const double exact = ceil(static_cast<double>(share) * static_cast<double>(total));
    mass = max(static_cast<uint64_t>(exact), uint64_t{1});
  }
  __device__ bool reached(const Tally& t) const { return count ? t.count >= count : t.mass >= mass; }
};

// The tokens among which the goal is reached: those of one bin, then, where many are near or equal, of one
// digit of their ranks after another: no two share a rank.
struct Bucket {
  uint64_t upper = kWorst;  // only ranks up to this
  int bin = -1;             // -1: any
  int shift = 64;           // rank >> shift is `prefix`; 64: any
  uint64_t prefix = 0;
  Tally before;  // of the tokens that rank before the bucket
  uint32_t members = 0;

  __device__ bool holds(uint64_t rank, float distance) const {
    return rank <= upper && is_there(distance) && (bin < 0 || bin_of(distance) == bin) && (shift == 64 || rank >> shift == prefix);
  }
  __device__ int next_shift() const { return max(shift - kDigitBits, 0); }
  // By what its tokens are told apart next, in [0, kBins); ascending as the ranks are.
  __device__ int digit(uint64_t rank, float distance) const {
    return bin < 0 ? bin_of(distance) : static_cast<int>(rank >> next_shift()) & (kBins - 1);
  }
  __device__ void narrow(int found) {
    if (bin < 0) {
      bin = found;
      return;
    }
    prefix = shift == 64 ? found : prefix << (shift - next_shift()) | found;
    shift = next_shift();
  }
};

// Items in the order of threads, kEach a thread, and `at` the sum of those before the thread's: the one
// thread that has the item with which the goal is reached calls found(its index, the sum before it, the
// item).
template <int kEach, typename Found>
__device__ void find_goal(const Goal& goal, Tally at, const Tally (&each)[kEach], Found&& found) {
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const Tally after = at + each[i];
    if (!goal.reached(at) && goal.reached(after)) found(static_cast<int>(threadIdx.x) * kEach + i, at, each[i]);
    at = after;
  }
}

// Narrows the bucket to the tokens of the digit at which the goal is reached. False if all of them do not
// reach it.
__device__ bool split(const Row& row, float top, const Peers& peers, Bucket& bucket, Goal& goal, Scratch& s) {
  for (int i = threadIdx.x; i < kBins; i += kThreads) s.bins.count[i] = s.bins.low[i] = s.bins.high[i] = 0;
  __syncthreads();  // and the last search's answer has been read
  if (threadIdx.x == 0) s.found_index = -1;
  for_each_token(row, peers, [&](int id, float value) {
    const uint64_t rank = rank_of(value, id);
    const float distance = row.distance(value, top);
    if (bucket.holds(rank, distance)) s.bins.add(bucket.digit(rank, distance), mass_at(distance));
  });
  peers.sync();
  constexpr int kEach = kBins / kThreads;
  Tally each[kEach], mine, total;
#pragma unroll 1
  for (int p = 0; p < peers.count; ++p) peers.at(&s.bins, p)->add_to(each, threadIdx.x);
#pragma unroll
  for (int i = 0; i < kEach; ++i) mine = mine + each[i];
  const Tally before = bucket.before + exclusive_scan(mine, total, s);
  if (bucket.bin < 0 && goal.count == 0) goal.set_total(total.mass);
  find_goal(goal, before, each,
            [&](int i, const Tally& at, const Tally& item) { s.found_index = i, s.found_before = at, s.found_count = item.count; });
  peers.sync();  // and the bins have been read by all
  if (s.found_index < 0) return false;
  bucket.narrow(s.found_index);
  bucket.before = s.found_before, bucket.members = s.found_count;
  return true;
}

// s.list[0, length) ascending; length is a power of two.
__device__ void sort_list(Scratch& s, int length) {
  for (int size = 2; size <= length; size *= 2) {
    for (int step = size / 2; step > 0; step /= 2) {
      __syncthreads();
      for (int pair = threadIdx.x; pair < length / 2; pair += kThreads) {
        const int low = 2 * pair - (pair & (step - 1)), high = low + step;
        const uint64_t a = s.list[low], b = s.list[high];
        if ((a > b) == ((low & size) == 0)) s.list[low] = b, s.list[high] = a;
      }
    }
  }
  __syncthreads();
}

// s.list becomes the ranks of the bucket's tokens, at most kListMax, of all blocks; the rest of it is kWorst.
__device__ void gather(const Row& row, float top, const Peers& peers, const Bucket& bucket, Scratch& s) {
  if (threadIdx.x == 0) s.length = 0;
  __syncthreads();
  for_each_token(row, peers, [&](int id, float value) {
    const uint64_t rank = rank_of(value, id);
    if (bucket.holds(rank, row.distance(value, top))) s.mine[atomicAdd(&s.length, 1u)] = rank;
  });
  peers.sync();
  uint32_t end = 0;
  for (int p = 0; p < peers.count; ++p) {
    const uint32_t length = *peers.at(&s.length, p);
    for (uint32_t i = threadIdx.x; i < length; i += kThreads) s.list[end + i] = *peers.at(&s.mine[i], p);
    end += length;
  }
  for (uint32_t i = end + threadIdx.x; i < kListMax; i += kThreads) s.list[i] = kWorst;
  peers.sync();  // the lists have been read by all
}

// The rank in a bucket of at most kListMax tokens at which the goal is reached.
__device__ uint64_t resolve(const Row& row, float top, const Peers& peers, const Bucket& bucket, const Goal& goal, Scratch& s) {
  gather(row, top, peers, bucket, s);
  int length = 2;
  while (length < static_cast<int>(bucket.members)) length *= 2;
  sort_list(s, length);
  constexpr int kEach = kListMax / kThreads;
  Tally each[kEach], mine, total;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const uint64_t rank = s.list[threadIdx.x * kEach + i];
    if (rank != kWorst) each[i] = {mass_at(row.distance(value_of(rank), top)), 1};
    mine = mine + each[i];
  }
  const Tally before = bucket.before + exclusive_scan(mine, total, s);
  find_goal(goal, before, each, [&](int i, const Tally&, const Tally&) { s.found_rank = s.list[i]; });
  __syncthreads();
  return s.found_rank;
}

// The last rank of the least head of the ranking that reaches the goal; `upper` if all up to it do not.
__device__ uint64_t last_kept(const Row& row, float top, const Peers& peers, uint64_t upper, Goal goal, Scratch& s) {
  Bucket bucket;
  bucket.upper = upper;
  do {
    if (!split(row, top, peers, bucket, goal, s)) return upper;
  } while (bucket.members > kListMax);
  return resolve(row, top, peers, bucket, goal, s);
}

// Which tokens are left, and what of them in ascending id.
struct Kept {
  uint64_t last;
  float top, min_p;

  __device__ float value(const Row& row, int id) const { return id < row.vocab ? row.value(id) : -INFINITY; }
  __device__ uint64_t mass(const Row& row, int id, float value) const {
    if (id >= row.vocab) return 0;
    const float distance = row.distance(value, top);
    if (!is_there(distance) || rank_of(value, id) > last) return 0;
    const float weight = expf(-distance);
    return weight < min_p ? 0 : mass_of(weight);
  }
};

// The first id of a tile of `length` tokens at which the mass, from `passed` before the tile on, exceeds
// `goal`; one warp.
__device__ int walk_tile(const Row& row, const Kept& kept, int first, int length, uint64_t passed, uint64_t goal) {
  const int lane = threadIdx.x % 32;
  for (int i = lane; i < length; i += 32) {
    uint64_t sum = kept.mass(row, first + i, kept.value(row, first + i));
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const uint64_t other = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += other;
    }
    const uint32_t beyond = __ballot_sync(~0u, passed + sum > goal);
    if (beyond) return first + i - lane + __ffs(beyond) - 1;
    passed += __shfl_sync(~0u, sum, 31);
  }
  return -1;
}

// The masses of the block's tiles, s.tiles. Some tiles of a warp at once, and pieces of each, so that many loads are under way.
__device__ void weigh_tiles(const Row& row, const Peers& peers, const Kept& kept, int length, int own, Scratch& s) {
  constexpr int kTilesAtOnce = 4, kPieces = 4;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int tile = peers.rank * own + warp * kTilesAtOnce; tile < (peers.rank + 1) * own; tile += kWarps * kTilesAtOnce) {
    uint64_t sum[kTilesAtOnce] = {};
    for (int i = lane; i < length; i += kPieces * 32) {
      float values[kTilesAtOnce][kPieces];
#pragma unroll
      for (int t = 0; t < kTilesAtOnce; ++t) {
#pragma unroll
        for (int u = 0; u < kPieces; ++u)
          values[t][u] = i + u * 32 < length ? kept.value(row, (tile + t) * length + i + u * 32) : -INFINITY;
      }
#pragma unroll
      for (int t = 0; t < kTilesAtOnce; ++t) {
#pragma unroll
        for (int u = 0; u < kPieces; ++u) {
          if (i + u * 32 < length) sum[t] += kept.mass(row, (tile + t) * length + i + u * 32, values[t][u]);
        }
      }
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
#pragma unroll
      for (int t = 0; t < kTilesAtOnce; ++t) sum[t] += __shfl_xor_sync(~0u, sum[t], step);
    }
#pragma unroll
    for (int t = 0; t < kTilesAtOnce; ++t) {
      if (lane == 0) s.tiles[tile + t] = sum[t];
    }
  }
}

// The kept tokens in ascending id: the first at which the mass so far exceeds `uniform` of all, or `none` where none is kept. -1:
// another block tells.
__device__ int walk(const Row& row, const Peers& peers, const Kept& kept, float uniform, int none, Scratch& s) {
  const int length = tile_length(row), own = kTiles / peers.count;  // tiles of a block
  weigh_tiles(row, peers, kept, length, own, s);
  peers.sync();  // and the last search's answer has been read
  if (threadIdx.x == 0) s.found_index = -1;
  constexpr int kEach = kTiles / kThreads;
  Tally each[kEach], mine, total;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int tile = threadIdx.x * kEach + i;
    each[i].mass = *peers.at(&s.tiles[tile], tile / own);
    mine = mine + each[i];
  }
  const Tally before = exclusive_scan(mine, total, s);
  Goal goal;  // to exceed uniform * total is to reach one more, in whole units
  goal.mass = static_cast<uint64_t>(static_cast<double>(uniform) * static_cast<double>(total.mass)) + 1;
  find_goal(goal, before, each, [&](int i, const Tally& at, const Tally&) { s.found_index = i, s.found_before = at; });
  __syncthreads();
  const int tile = s.found_index;
  if (tile < 0) return peers.rank == 0 ? none : -1;
  if (tile / own != peers.rank || threadIdx.x >= 32) return -1;
  return walk_tile(row, kept, tile * length, length, s.found_before.mass, goal.mass - 1);
}

// Marks the tokens of the row's history; one block of the row does.
__device__ void mark_history(const SampleParams& p, int r, uint32_t* bitmap, int words) {
  for (int i = threadIdx.x; i < words; i += kThreads) __stcg(bitmap + i, 0u);
  __syncthreads();
  for (int i = p.history_indptr[r] + threadIdx.x; i < p.history_indptr[r + 1]; i += kThreads) {
    const int32_t id = p.history[i];
    if (id >= 0 && id < p.vocab) atomicOr(bitmap + id / 32, 1u << (id % 32));
  }
  __threadfence();
}

// How a row is sampled, which the host has said before the step.
struct How {
  int64_t from;  // row of the logits
  float temperature, penalty, top_p, min_p, uniform;
  int top_k;

  __device__ How(const SampleParams& p, int r)
      : from(p.row_index ? p.row_index[r] : r),
        temperature(p.temperature[r]),
        penalty(p.repetition_penalty ? p.repetition_penalty[r] : 1.0f),
        top_p(p.top_p[r]),
        min_p(p.min_p[r]),
        uniform(p.uniform[r]),
        top_k(p.top_k[r]) {}
};

// A row that is left to chance, or has penalties.
__global__ void __launch_bounds__(kThreads, 1)
    sample_kernel(const __grid_constant__ SampleParams p, const BestOfRow* rows, uint32_t* bitmaps, int words) {
  __shared__ Scratch s;
  let_next_begin();
  const Peers peers = Peers::of_this_block();
  const int r = blockIdx.x / peers.count;
  const How how(p, r);
  const bool penalised = is_penalised(p, r);
  wait_for_previous();
  if (how.temperature == 0.0f && !penalised) return;  // all blocks of the row
  Row row{p.logits + how.from * p.vocab, nullptr, how.penalty, 1.0f / how.temperature, p.vocab};
  if (penalised) {
    uint32_t* bitmap = bitmaps + static_cast<int64_t>(r) * words;
    if (peers.rank == 0) mark_history(p, r, bitmap, words);
    peers.sync();
    row.penalised = bitmap;
  }
  const uint64_t best = penalised ? best_rank(row, peers, s) : rows[r].best;
  const float top = value_of(best);
  int chosen = peers.rank == 0 ? id_of(best) : -1;
  if (how.temperature != 0.0f) {
    const Goal top_k{static_cast<uint32_t>(how.top_k)}, top_p{0, how.top_p};
    uint64_t last = kWorst;
#pragma unroll 1
    for (int pass = 0; pass < 2; ++pass) {
      const bool keeps_all = pass == 0 ? how.top_k == 0 || how.top_k >= p.vocab : how.top_p >= 1.0f;
      if (!keeps_all) last = last_kept(row, top, peers, last, pass == 0 ? top_k : top_p, s);
    }
    chosen = walk(row, peers, {last, top, how.min_p}, how.uniform, id_of(best), s);
  }
  if (chosen >= 0 && threadIdx.x == 0) p.tokens[r] = chosen;
  peers.sync();  // no block leaves while another reads its shared memory
}

}  // namespace

Status Sample::prepare(const OpsLimits& limits, Device& device) {
  if (limits.vocab > kVocabMax) {
    return Status::unsupported("device cuda: a vocabulary of " + std::to_string(limits.vocab) + " tokens, more than " +
                               std::to_string(kVocabMax));
  }
  blocks_ = runs_code_for_hopper() ? static_cast<const CudaDevice&>(device).multiprocessors() : 0;
  rows_max_ = limits.max_sample_rows;
  words_ = ceil_div(limits.vocab, 32);
  FOVEA_ASSIGN(best_, device.allocate(static_cast<size_t>(rows_max_) * sizeof(BestOfRow), "sampling"));
  FOVEA_ASSIGN(penalised_, device.allocate(static_cast<size_t>(rows_max_) * words_ * sizeof(uint32_t), "sampling"));
  return {};
}

void Sample::run(const SampleParams& p, const Queue& queue) {
  if (p.rows == 0) return;
  FOVEA_CHECK(p.rows <= rows_max_ && p.vocab > 0 && ceil_div(p.vocab, 32) <= words_);
  int cluster = 1;  // as many blocks a row as run at once: clusters leave some multiprocessors idle
  while (cluster < kClusterMax && 2 * cluster * p.rows <= blocks_ * 3 / 4) cluster *= 2;
  find_best(p, best_.as<BestOfRow>(), queue);
  launch_clusters("sample", sample_kernel, cluster, p.rows * cluster, kThreads, queue, p, best_.as<BestOfRow>(),
                  penalised_.as<uint32_t>(), words_);
}

}  // namespace fovea::cuda
