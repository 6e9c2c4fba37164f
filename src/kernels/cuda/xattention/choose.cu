// The parts of a tile's rows -> P -> its lists. A thread block for each list.
//
// Nothing is sorted: taken are the blocks above some value and, of those that equal it, the first ones. The value is found by
// bisection over its bits, until one block is left: by one warp, which needs no barriers; others have their lists meanwhile.
// Sums are of integers, so their order does not matter.
#include "kernels/cuda/vec.cuh"
#include "kernels/cuda/xattention/cells.cuh"

namespace fovea::cuda::xattention {
namespace {

constexpr int kWarp = 32, kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kCached = 2048;  // blocks: of 256K tokens
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr uint32_t kInfinityBits = 0x7f800000u;

using cuda::warp_sum;
// Sums of 27 bits of each lane fit 32.
__device__ unsigned long long warp_sum(unsigned long long x) {
  constexpr unsigned kPart = (1u << 27) - 1;
  const unsigned long long low = __reduce_add_sync(kAllLanes, static_cast<unsigned>(x) & kPart);
  const unsigned long long middle = __reduce_add_sync(kAllLanes, static_cast<unsigned>(x >> 27) & kPart);
  const unsigned long long high = __reduce_add_sync(kAllLanes, static_cast<unsigned>(x >> 54));
  return low + (middle << 27) + (high << 54);
}

// What is chosen beside the forced blocks: those whose bits are greater, and the first `ties` of those that have these bits.
struct Cut {
  uint32_t bits;
  unsigned long long ties;
};

struct Shared {
  Cut cut;
  int32_t ranks[kWarps];
  float sums[kCached];  // P, where it fits: what is read again and again
};

// How many threads before this one have the flag; *total: how many in the block.
__device__ int32_t rank_of_flag(bool flag, Shared& s, int32_t* total) {
  const unsigned mask = __ballot_sync(kAllLanes, flag);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  __syncthreads();
  if (lane == 0) s.ranks[warp] = __popc(mask);
  __syncthreads();
  int32_t before = 0;
  *total = 0;
  for (int w = 0; w < kWarps; ++w) {
    before += w < warp ? s.ranks[w] : 0;
    *total += s.ranks[w];
  }
  return before + __popc(mask & ((1u << lane) - 1));
}

// P in units of 2^-57, at most 32 of it in all, one for each of a tile's rows: sums stay below 2^63, and what a float loses is less
// than 2^-57.
__device__ unsigned long long fixed(float x) { return static_cast<unsigned long long>(x * 0x1p57f); }

// One query head of a tile.
class Head {
 public:
  __device__ Head(const PassArgs& args, const Place& at, int32_t tile, int32_t head, Shared& shared)
      : a(args),
        s(shared),
        head_(head),
        first_row_(static_cast<int64_t>(tile) * args.cells * args.p.num_heads + head),
        blocks_((at.len - 1) / args.p.block_size + 1),
        diagonal_begin_(max(0, at.block - (args.p.recent_blocks - 1))),
        diagonal_end_(at.block + 1) {
    if (a.weights != nullptr) {
      sum_rows();
    } else {
      sums_ = a.p.sums + (static_cast<int64_t>(a.first_tile + tile) * a.p.num_heads + head) * a.p.capacity;
    }
  }

  __device__ void write_sums(float* to) const {
    for (int32_t u = threadIdx.x; u < a.p.capacity; u += kThreads) to[u] = u < blocks_ ? sums_[u] : 0.0f;
  }

  // Calls take(u) for each chosen block, each thread for those u that are its number modulo kThreads.
  template <typename Take>
  __device__ void choose(Take take) {
    bool none = false;
    for (int32_t u = threadIdx.x; u < blocks_; u += kThreads) {
      const float x = sums_[u];
      none |= isnan(x);
      if (blocks_ <= kCached) s.sums[u] = x;
    }
    if (__syncthreads_or(none) || (!by_count() && threshold() >= 1.0f)) {
      for (int32_t u = threadIdx.x; u < blocks_; u += kThreads) take(u);
      return;
    }
    if (threadIdx.x < kWarp) {
      const Cut cut = find_cut();
      if (threadIdx.x == 0) s.cut = cut;
    }
    __syncthreads();
    const Cut cut = s.cut;
    unsigned long long equals = 0;
    for (int32_t first = 0; first < blocks_; first += kThreads) {
      const int32_t u = first + static_cast<int32_t>(threadIdx.x);
      const bool there = u < blocks_, own = there && forced(u);
      const uint32_t bits = there ? __float_as_uint(sums_[u]) : 0;
      int32_t found = 0;
      const int32_t rank = rank_of_flag(there && !own && bits == cut.bits, s, &found);
      const bool tie = bits == cut.bits && equals + static_cast<unsigned>(rank) < cut.ties;
      if (there && (own || bits > cut.bits || tie)) take(u);
      equals += static_cast<unsigned>(found);
    }
  }

 private:
  // P, in the place of the first row's weights.
  __device__ void sum_rows() {
    const int lane = threadIdx.x % kWarp;
    const int32_t shift = __ffs(a.tile_cells / a.cells) - 1, tiles = ((blocks_ - 1) >> shift) + 1;  // 2^shift blocks of a tile
    for (int r = threadIdx.x / kWarp; r < a.cells; r += kWarps) {
      const int64_t row = first_row_ + static_cast<int64_t>(r) * a.p.num_heads;
      const float* weights = a.weights + row * a.p.capacity;
      float* factors = a.greatest + row * a.cell_tiles;  // what weights are to be multiplied with takes their place
      float greatest = kNoScore, sum = 0.0f;
      for (int32_t t = lane; t < tiles; t += kWarp) greatest = fmaxf(greatest, factors[t]);
      greatest = warp_max(greatest);
      for (int32_t t = lane; t < tiles; t += kWarp) factors[t] = exp2f(factors[t] - greatest);
      __syncwarp();
#pragma unroll 8
      for (int32_t u = lane; u < blocks_; u += kWarp) sum = fmaf(weights[u], factors[u >> shift], sum);
      sum = warp_sum(sum);
      const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
      __syncwarp();
      for (int32_t t = lane; t < tiles; t += kWarp) factors[t] *= inverse;
    }
    __syncthreads();
    float* sums = a.weights + first_row_ * a.p.capacity;
    for (int32_t u = threadIdx.x; u < blocks_; u += kThreads) {
      float sum = 0.0f;
#pragma unroll 8
      for (int r = 0; r < a.cells; ++r) {
        const int64_t row = first_row_ + static_cast<int64_t>(r) * a.p.num_heads;
        sum = fmaf(a.weights[row * a.p.capacity + u], a.greatest[row * a.cell_tiles + (u >> shift)], sum);
      }
      sums[u] = sum;
    }
    __syncthreads();
    sums_ = sums;
  }

  __device__ bool by_count() const { return a.p.top_k > 0; }
  __device__ float threshold() const { return a.p.threshold[head_]; }
  __device__ unsigned long long weight(float x) const { return by_count() ? 1ull : fixed(x); }

  // Of blocks that are forced or whose bits are greater: what they weigh, and how many are not forced.
  struct Above {
    unsigned long long weight;
    unsigned count;
  };
  __device__ Above above(const float* sums, uint32_t bits) const {
    Above x{};
#pragma unroll 8
    for (int32_t u = threadIdx.x; u < blocks_; u += kWarp) {
      const float sum = sums[u];
      const bool own = forced(u), greater = !own && __float_as_uint(sum) > bits;
      if (own || greater) x.weight += weight(sum);
      x.count += greater ? 1 : 0;
    }
    return {warp_sum(x.weight), __reduce_add_sync(kAllLanes, x.count)};
  }

  // One warp. The cut lies at the least value that those above do not suffice without.
  __device__ Cut find_cut() const {
    const float* sums = blocks_ <= kCached ? s.sums : sums_;
    unsigned long long total = 0;
    unsigned rest = 0;  // blocks that are not forced
    for (int32_t u = threadIdx.x; u < blocks_; u += kWarp) total += weight(sums[u]), rest += forced(u) ? 0 : 1;
    total = warp_sum(total);
    const unsigned long long enough =
        by_count() ? static_cast<unsigned long long>(a.p.top_k)
                   : static_cast<unsigned long long>(ceil(static_cast<double>(threshold()) * static_cast<double>(total)));
    Above top = above(sums, kInfinityBits);
    if (top.weight >= enough) return {kInfinityBits, 0};  // the forced ones suffice
    if (total < enough) return {0, static_cast<unsigned long long>(blocks_)};
    uint32_t low = 0, high = kInfinityBits;
    unsigned within = __reduce_add_sync(kAllLanes, rest) - top.count;  // blocks of [low, high]: one at least
    while (low < high && within > 1) {
      const uint32_t middle = (low + high) / 2;
      const Above x = above(sums, middle);
      if (x.weight < enough) {
        within -= x.count - top.count;
        high = middle, top = x;
      } else {
        within = x.count - top.count;
        low = middle + 1;
      }
    }
    uint32_t bits = 0;  // of the one that is left
    for (int32_t u = threadIdx.x; u < blocks_; u += kWarp) {
      const uint32_t x = __float_as_uint(sums[u]);
      if (!forced(u) && x <= high) bits = max(bits, x);
    }
    bits = __reduce_max_sync(kAllLanes, bits);
    const unsigned long long each = weight(__uint_as_float(bits));
    return {bits, each == 0 ? blocks_ : (enough - top.weight + each - 1) / each};
  }

  __device__ bool forced(int32_t u) const { return u < a.p.sink_blocks || (u >= diagonal_begin_ && u < diagonal_end_); }

  const PassArgs& a;
  Shared& s;
  const int32_t head_;
  const int64_t first_row_;  // of W
  const int32_t blocks_, diagonal_begin_, diagonal_end_;
  const float* sums_ = nullptr;  // P
};

// Heads that vote for a list: one, or those of a KV head. Votes are counted where the list will lie.
__global__ void __launch_bounds__(kThreads) choose_blocks(const __grid_constant__ PassArgs a) {
  __shared__ Shared s;
  const XAttentionParams& p = a.p;
  const int32_t tile = blockIdx.y, heads = p.group_vote ? a.group() : 1;
  const Place at = place_of(p, a.first_tile + tile);
  const int64_t list = static_cast<int64_t>(a.first_tile + tile) * gridDim.x + blockIdx.x;
  int32_t* units = p.units + list * p.capacity;
  const int32_t blocks = (at.len - 1) / p.block_size + 1;
  for (int32_t u = threadIdx.x; u < blocks; u += kThreads) units[u] = 0;
  for (int32_t h = 0; h < heads; ++h) {
    const int32_t head = static_cast<int32_t>(blockIdx.x) * heads + h;
    Head one(a, at, tile, head, s);
    if (p.sums != nullptr && a.weights != nullptr) {
      one.write_sums(p.sums + (static_cast<int64_t>(a.first_tile + tile) * p.num_heads + head) * p.capacity);
    }
    one.choose([&](int32_t u) { ++units[u]; });
    __syncthreads();
  }
  int32_t count = 0;
  for (int32_t first = 0; first < blocks; first += kThreads) {
    const int32_t u = first + static_cast<int32_t>(threadIdx.x);
    const bool taken = u < blocks && 2 * units[u] >= heads;
    int32_t found = 0;
    const int32_t rank = rank_of_flag(taken, s, &found);  // after its barriers all have read their votes
    if (taken) units[count + rank] = u;
    count += found;
  }
  if (threadIdx.x == 0) p.counts[list] = count;
}

}  // namespace

Kernel choose_kernel() { return {reinterpret_cast<const void*>(&choose_blocks), kThreads, 0}; }

}  // namespace fovea::cuda::xattention
