// The parts of a tile's rows -> P -> its lists. A thread block for each list.
//
// Nothing is sorted: taken are the blocks above some value and, of those that equal it, the first ones. The value is found by
// bisection over its bits, 31 times a sum over the blocks. Sums are of integers, so their order does not matter.
#include "kernels/cuda/xattention/cells.cuh"

namespace fovea::cuda::xattention {
namespace {

constexpr int kWarp = 32, kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kCellsMax = 32;  // 128 tokens in cells of 4
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr uint32_t kInfinityBits = 0x7f800000u;

__device__ float warp_max(float x) {
  for (int step = kWarp / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, step));
  return x;
}
template <typename T>
__device__ T warp_sum(T x) {
  for (int step = kWarp / 2; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}

struct Shared {
  float greatest[kCellsMax], inverse[kCellsMax];  // of each row of W: 1 / sum of 2^(score - greatest); 0: no score
  unsigned long long sums[kWarps];
  int32_t ranks[kWarps];
};

__device__ unsigned long long block_sum(unsigned long long x, Shared& s) {
  x = warp_sum(x);
  __syncthreads();
  if (threadIdx.x % kWarp == 0) s.sums[threadIdx.x / kWarp] = x;
  __syncthreads();
  return warp_sum(threadIdx.x % kWarp < kWarps ? s.sums[threadIdx.x % kWarp] : 0ull);
}

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

// P in units of 2^-57, no more than kCellsMax of it in all: sums stay below 2^63, and what a float loses is less than 2^-57.
__device__ unsigned long long fixed(float x) { return static_cast<unsigned long long>(x * 0x1p57f); }

// One query head of a tile.
class Head {
 public:
  __device__ Head(const PassArgs& args, const Place& at, int32_t tile, int32_t head, Shared& shared)
      : a(args),
        s(shared),
        head_(head),
        parts_(args.parts + (static_cast<int64_t>(tile) * args.cells * args.p.num_heads + head) * args.p.capacity),
        row_stride_(static_cast<int64_t>(args.p.num_heads) * args.p.capacity),
        blocks_((at.len - 1) / args.p.block_size + 1),
        diagonal_begin_(max(0, at.block - (args.p.recent_blocks - 1))),
        diagonal_end_(at.block + 1) {}

  // P, in the place of the first row's greatest scores.
  __device__ void sum_rows() {
    const int lane = threadIdx.x % kWarp;
    for (int r = threadIdx.x / kWarp; r < a.cells; r += kWarps) {
      const float2* row = parts_ + r * row_stride_;
      float greatest = kNoScore, sum = 0.0f;
      for (int32_t u = lane; u < blocks_; u += kWarp) greatest = fmaxf(greatest, row[u].x);
      greatest = warp_max(greatest);
      for (int32_t u = lane; u < blocks_; u += kWarp) sum += row[u].y * exp2f(row[u].x - greatest);
      sum = warp_sum(sum);
      if (lane == 0) s.greatest[r] = greatest, s.inverse[r] = sum == 0.0f ? 0.0f : 1.0f / sum;
    }
    __syncthreads();
    for (int32_t u = threadIdx.x; u < blocks_; u += kThreads) {
      float sum = 0.0f;
      for (int r = 0; r < a.cells; ++r) {
        const float2 part = parts_[r * row_stride_ + u];
        sum += part.y * exp2f(part.x - s.greatest[r]) * s.inverse[r];
      }
      parts_[u].x = sum;
    }
    __syncthreads();
  }

  __device__ void write_sums(float* to) const {
    for (int32_t u = threadIdx.x; u < a.p.capacity; u += kThreads) to[u] = u < blocks_ ? parts_[u].x : 0.0f;
  }

  // Calls take(u) for each chosen block, each thread for those u that are its number modulo kThreads.
  template <typename Take>
  __device__ void choose(Take take) {
    const bool by_count = a.p.top_k > 0;
    const float threshold = a.p.threshold[head_];
    bool none = false;
    for (int32_t u = threadIdx.x; u < blocks_; u += kThreads) none |= isnan(parts_[u].x);
    if (__syncthreads_or(none) || (!by_count && threshold >= 1.0f)) {
      for (int32_t u = threadIdx.x; u < blocks_; u += kThreads) take(u);
      return;
    }
    const auto weight = [&](float x) { return by_count ? 1ull : fixed(x); };
    const auto sum_if = [&](auto counts) {
      unsigned long long sum = 0;
      for (int32_t u = threadIdx.x; u < blocks_; u += kThreads) {
        const float x = parts_[u].x;
        if (counts(u, __float_as_uint(x))) sum += weight(x);
      }
      return block_sum(sum, s);
    };
    const unsigned long long total = sum_if([](int32_t, uint32_t) { return true; });
    const unsigned long long enough =
        by_count ? static_cast<unsigned long long>(a.p.top_k)
                 : static_cast<unsigned long long>(ceil(static_cast<double>(threshold) * static_cast<double>(total)));
    const auto sum_above = [&](uint32_t bits) {  // of what is forced and what is greater
      return sum_if([&](int32_t u, uint32_t x) { return forced(u) || x > bits; });
    };
    // The least value that those above do not suffice without; with kInfinityBits none but the forced ones are above.
    uint32_t low = 0, high = kInfinityBits;
    unsigned long long above = sum_above(high);
    const bool more = above < enough;
    while (more && low < high) {
      const uint32_t middle = (low + high) / 2;
      const unsigned long long sum = sum_above(middle);
      if (sum < enough) {
        high = middle, above = sum;
      } else {
        low = middle + 1;
      }
    }
    const unsigned long long each = weight(__uint_as_float(high));
    const unsigned long long wanted = !more ? 0 : each == 0 ? blocks_ : (enough - above + each - 1) / each;  // of those equal to it
    unsigned long long equals = 0;
    for (int32_t first = 0; first < blocks_; first += kThreads) {
      const int32_t u = first + static_cast<int32_t>(threadIdx.x);
      const bool there = u < blocks_, own = there && forced(u);
      const uint32_t bits = there ? __float_as_uint(parts_[u].x) : 0;
      int32_t found = 0;
      const int32_t rank = rank_of_flag(there && !own && bits == high, s, &found);
      const bool tie = bits == high && equals + static_cast<unsigned>(rank) < wanted;
      if (there && (own || bits > high || tie)) take(u);
      equals += static_cast<unsigned>(found);
    }
  }

 private:
  __device__ bool forced(int32_t u) const { return u < a.p.sink_blocks || (u >= diagonal_begin_ && u < diagonal_end_); }

  const PassArgs& a;
  Shared& s;
  const int32_t head_;
  float2* parts_;
  const int64_t row_stride_;
  const int32_t blocks_, diagonal_begin_, diagonal_end_;
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
    one.sum_rows();
    if (p.sums != nullptr) {
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
