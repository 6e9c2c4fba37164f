// Absorbed attention on Hopper's tensor cores: a thread block takes 64 heads of a row, and its keys in pairs of tiles of 64. One
// warpgroup copies entries, each from where it lies; two attend. Each of these scores one tile of a pair, and sums up half of the
// latents over both: its own weights multiply from registers, the other's from shared memory. The result, 64 x 512, fills the
// registers of both. One goes ahead and the other follows its greatest scores, so that one computes weights while the other's
// products run. Each half of a tile is freed and filled by itself, as soon as the last product with it is through.
#include <cuda_runtime.h>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/mla/kernels.h"
#include "kernels/cuda/mla/row_keys.cuh"
#include "kernels/cuda/mla/warp_query.cuh"
#include "kernels/cuda/prefill/hopper.cuh"

namespace fovea::cuda::mla {
namespace {

using namespace prefill;  // PTX

constexpr int kHeads = kWgmmaHeads, kKeys = 64;
constexpr int kEntry = kWgmmaLatent + kWgmmaRope;
constexpr int kPanels = kEntry / 64;  // of 64 elements: rows of 128 bytes, as wgmma permutes them
constexpr int kPanelBytes = 64 * 128;
constexpr int kValuePanels = kWgmmaLatent / 2 / 64;  // of a half of the latents; the second half ends with the panel of positions
constexpr int kAttending = 2 * 128, kThreads = 128 + kAttending;
static_assert(kWgmmaRope == 64 && kWgmmaLatent == 2 * 256 && SplitRule::kTileKeys % kKeys == 0);

struct Shared {
  alignas(1024) uint8_t q[kPanels][kPanelBytes];           // [heads]
  alignas(1024) uint8_t entries[2][kPanels][kPanelBytes];  // of two tiles [keys]
  alignas(1024) uint8_t weights[kPanelBytes];              // of the second tile [heads]
  float most[2][kHeads];                                   // the greatest score of each head so far, as a group knows it
  float sums[2][kHeads];
  uint16_t seen[2][4];                          // a bit a key of a tile
  alignas(8) uint64_t full[2][2], empty[2][2];  // of a tile's halves
  uint64_t told[4];                             // what one attending group waits for and the other has: see kFirstMost
};
static_assert(sizeof(Shared) <= 227 * 1024);

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int kWeights = kPanels - 1;  // the panel of the first tile that its weights replace: positions have no values
constexpr int kTilesKeys = 2 * kKeys;
constexpr int kAttendBarrier = 1;  // of all attending threads
enum Told { kFirstMost, kSecondMost, kFirstWeights, kSecondWeights };
constexpr int kCopyRegisters = 56, kAttendRegisters = 224;  // of 64K: 168 a thread at the start

// What a thread block walks: of a row's keys, the splits [first, end), one after the other.
struct Walk {
  RowKeys keys;
  int each, first, end;

  __device__ explicit Walk(const AttendArgs& a)
      : keys(a, a.first_row + static_cast<int>(blockIdx.z)), each(a.rule.split_keys(keys.keys)), first(blockIdx.y) {
    const int splits = a.rule.splits(keys.keys);
    end = gridDim.y == 1 ? splits : min(splits, first + 1);
  }
  __device__ int end_of(int split) const { return min(keys.keys, (split + 1) * each); }
};

// Byte of a 16-byte chunk of a row within a panel.
__device__ __forceinline__ int chunk_at(int row, int chunk) { return row * 128 + ((chunk ^ (row & 7)) << 4); }

// The same matrix, `bytes` further on: cheaper than to describe it again.
__device__ __forceinline__ uint64_t advanced(uint64_t descriptor, int bytes) { return descriptor + (bytes >> 4); }

// ---- The copying warps: 16 keys of each tile -----------------------------------------------------------------------------------

class Copier {
 public:
  __device__ Copier(const AttendArgs& args, const Walk& walk, Shared& shared)
      : a(args), walk_(walk), s(shared), lane_(threadIdx.x % 32), warp_(threadIdx.x / 32) {}

  __device__ __forceinline__ void run() {
    uint32_t read = 0;
    int64_t next = place_at(walk_.first, walk_.first * walk_.each);
    for (int split = walk_.first; split < walk_.end; ++split) {
      const int end = walk_.end_of(split);
      for (int tile = split * walk_.each; tile < end; tile += kTilesKeys) {
        const int64_t place = next;
        const uint32_t seen = __ballot_sync(kAllLanes, place >= 0);
        read += __popc(seen);
        copy<0, 0>(place, seen);  // in the order in which they are freed
        copy<1, 1>(place, seen);
        copy<0, 1>(place, seen);
        copy<1, 0>(place, seen);
        next = tile + kTilesKeys < end ? place_at(split, tile + kTilesKeys) : place_at(split + 1, (split + 1) * walk_.each);
        turn_ ^= 1;
      }
    }
    if (a.p.keys_read != nullptr && blockIdx.x == 0 && lane_ == 0 && read > 0)
      atomicAdd(reinterpret_cast<unsigned long long*>(a.p.keys_read + a.first_row + blockIdx.z),
                static_cast<unsigned long long>(read));
  }

 private:
  // Of the lane's key: 16 lanes for each of the two tiles that begin at `tile`.
  __device__ __forceinline__ int64_t place_at(int split, int tile) const {
    const int key = tile + lane_ / 16 * kKeys + warp_ * 16 + lane_ % 16;
    return split < walk_.end && key < walk_.end_of(split) ? walk_.keys.place(a.kv, key) : -1;
  }

  // Four keys at a time, eight lanes each.
  template <int kTile, int kHalf>
  __device__ __forceinline__ void copy(int64_t place, uint32_t seen) {
    constexpr int kFirst = kHalf * kValuePanels, kEnd = kHalf == 0 ? kValuePanels : kPanels;
    barrier_wait(s.empty[kTile][kHalf], turn_ ^ 1);
    if (kTile == kHalf && lane_ == 0) {
      s.seen[kTile][warp_] = static_cast<uint16_t>(seen >> kTile * 16);
      barrier_arrive(s.full[kTile][kHalf]);
    }
#pragma unroll
    for (int k = 0; k < 16; k += 4) {
      const int64_t from = __shfl_sync(kAllLanes, place, kTile * 16 + k + lane_ / 8);
      const auto* entry = static_cast<const char*>(a.kv.k) + (from < 0 ? 0 : from * 2) + lane_ % 8 * 16;
      const uint32_t row = shared_address(s.entries[kTile][0]) + chunk_at(warp_ * 16 + k + lane_ / 8, lane_ % 8);
#pragma unroll
      for (int panel = kFirst; panel < kEnd; ++panel) copy_async_16(row + panel * kPanelBytes, entry + panel * 128, from >= 0);
    }
    copy_async_arrive(s.full[kTile][kHalf]);
  }

  const AttendArgs& a;
  const Walk& walk_;
  Shared& s;
  const int lane_, warp_;
  uint32_t turn_ = 0;
};

// Arrivals at the barriers of a half: of all copies, and with the first half of a lane of each warp that says which keys are seen;
// of the group whose product is the last. What a group tells the other all of its threads tell.
__device__ __forceinline__ void init_barriers(Shared& s) {
  for (int tile = 0; tile < 2; ++tile) {
    for (int half = 0; half < 2; ++half) {
      barrier_init(s.full[tile][half], tile == half ? 128 + 4 : 128);
      barrier_init(s.empty[tile][half], 128);
    }
  }
  for (uint64_t& told : s.told) barrier_init(told, 128);
  barrier_init_fence();
}

// To L2: what this block's queries wait for on their way.
__device__ __forceinline__ void prefetch_queries(const AttendArgs& a) {
  const int first_head = static_cast<int>(blockIdx.x) * kHeads, heads = min(kHeads, a.p.num_heads - first_head);
  const float* q = a.p.q + (static_cast<int64_t>(a.first_row + blockIdx.z) * a.p.num_heads + first_head) * kEntry;
  prefetch_bytes(q, heads * kEntry * static_cast<int>(sizeof(float)));
}

// ---- The attending warpgroups -------------------------------------------------------------------------------------------------

// Rounded to T; heads that there are not are zero. A warp reads 512 bytes at a time, and all is on its way at once.
template <typename T>
__device__ __forceinline__ void load_queries(const AttendArgs& a, Shared& s) {
  constexpr int kFours = kEntry / 4, kEach = kHeads * kFours / kAttending;
  static_assert(kHeads * kFours % kAttending == 0);
  const int thread = threadIdx.x - 128, first_head = static_cast<int>(blockIdx.x) * kHeads;
  const float* q = a.p.q + (static_cast<int64_t>(a.first_row + blockIdx.z) * a.p.num_heads + first_head) * kEntry;
  float4 x[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = thread + i * kAttending;
    x[i] = first_head + at / kFours < a.p.num_heads ? reinterpret_cast<const float4*>(q)[at] : float4{};
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int head = (thread + i * kAttending) / kFours, at = (thread + i * kAttending) % kFours;
    *reinterpret_cast<uint2*>(s.q[at / 16] + chunk_at(head, at / 2 % 8) + at % 2 * 8) =
        make_uint2(pack2<T>(x[i].x, x[i].y), pack2<T>(x[i].z, x[i].w));
  }
  async_proxy_fence();
  named_barrier_wait(kAttendBarrier, kAttending);
}

// kGroup: the tile of two that the group scores, and the half of the latents that it sums up.
template <typename T, int kGroup>
class Attender {
 public:
  __device__ Attender(const AttendArgs& args, const Walk& walk, Shared& shared)
      : a(args),
        walk_(walk),
        s(shared),
        lane_(threadIdx.x % 32),
        row_(threadIdx.x % 128 / 32 * 16 + lane_ / 4),
        first_head_(static_cast<int>(blockIdx.x) * kHeads),
        scale_(args.p.scale * kLog2e) {}

  __device__ __forceinline__ void run() {
    float scores[8][4];
    for (int split = walk_.first; split < walk_.end; ++split) {
      const int end = walk_.end_of(split);
      float out[32][4] = {};
      most_[0] = most_[1] = -INFINITY;
      sum_[0] = sum_[1] = 0.0f;
      for (int tile = split * walk_.each; tile < end; tile += kTilesKeys) {
        start_scores(scores);
        wgmma_wait<0>();
        pin(scores);
        mask(scores);
        if constexpr (kGroup == 0) {
          attend_ahead(scores, out);
        } else {
          attend_behind(scores, out);
        }
        turn_ ^= 1;
      }
      finish(split, out);
    }
  }

 private:
  using Weights = uint32_t[kKeys / 16][4];

  __device__ __forceinline__ int64_t row_head(int i) const {
    return static_cast<int64_t>(a.first_row + blockIdx.z) * a.p.num_heads + first_head_ + row_ + 8 * i;
  }
  __device__ __forceinline__ bool has_head(int i) const { return first_head_ + row_ + 8 * i < a.p.num_heads; }

  // Copies are ordinary accesses to shared memory.
  __device__ __forceinline__ void wait_for(int tile, int half) {
    barrier_wait(s.full[tile][half], turn_);
    async_proxy_fence();
  }
  // After this warp's last product with it.
  __device__ __forceinline__ void free_half(int tile, int half) { barrier_arrive(s.empty[tile][half]); }

  // This group's news to the other, once a pair of tiles; what the other has told.
  __device__ __forceinline__ void tell(Told what) { barrier_arrive(s.told[what]); }
  __device__ __forceinline__ void wait_to_be_told(Told what) { barrier_wait(s.told[what], turn_); }

  // Of the group's tile. The half that the group frees itself was freed first, and is there first.
  __device__ __forceinline__ void start_scores(float (&scores)[8][4]) {
    pin(scores);
    add_scores<kGroup>(false, scores);
    add_scores<1 - kGroup>(true, scores);
  }
  template <int kHalf>
  __device__ __forceinline__ void add_scores(bool add, float (&scores)[8][4]) {
    constexpr int kFirst = kHalf * kValuePanels, kSteps = (kHalf == 0 ? kValuePanels : kPanels - kValuePanels) * 4;
    const uint64_t q = matrix_descriptor(shared_address(s.q)), k = matrix_descriptor(shared_address(s.entries[kGroup]));
    wait_for(kGroup, kHalf);
    wgmma_begin();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int at = (kFirst + step / 4) * kPanelBytes + step % 4 * 32;
      wgmma_keys<T>(scores, advanced(q, at), advanced(k, at), add || step > 0);
    }
    wgmma_commit();
  }

  // Scaled to log2 units; keys that are not seen are -inf.
  __device__ __forceinline__ void mask(float (&scores)[8][4]) const {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const uint32_t seen = s.seen[kGroup][n / 2] >> (n % 2 * 8 + lane_ % 4 * 2);
#pragma unroll
      for (int e = 0; e < 4; ++e) scores[n][e] = (seen >> (e & 1) & 1) != 0 ? scores[n][e] * scale_ : -INFINITY;
    }
  }

  // The greatest of `before` and the tile's.
  __device__ __forceinline__ static void raise(const float (&scores)[8][4], float (&most)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float x = most[i];
#pragma unroll
      for (int n = 0; n < 8; ++n) x = fmaxf(x, fmaxf(scores[n][2 * i], scores[n][2 * i + 1]));
      x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
      most[i] = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
    }
  }
  __device__ __forceinline__ void say_most(const float (&most)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (lane_ % 4 == 0) s.most[kGroup][row_ + 8 * i] = most[i];
    }
  }
  __device__ __forceinline__ void hear_most(float (&most)[2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) most[i] = s.most[1 - kGroup][row_ + 8 * i];
  }

  // What weights are relative to: the greatest score, or anything finite where nothing was seen.
  __device__ __forceinline__ static float base(float most) { return most == -INFINITY ? 0.0f : most; }

  // Weights are relative to `most` from here on; `factor` is what brings older ones there.
  __device__ __forceinline__ void follow(const float (&most)[2], float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      factor[i] = exp2_fast(most_[i] - base(most[i]));
      most_[i] = most[i];
      sum_[i] *= factor[i];
    }
  }

  // Scores become weights.
  __device__ __forceinline__ void weigh(float (&scores)[8][4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float least = base(most_[i]);
      float sum = 0.0f;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        scores[n][2 * i] = exp2_fast(scores[n][2 * i] - least);
        scores[n][2 * i + 1] = exp2_fast(scores[n][2 * i + 1] - least);
        sum += scores[n][2 * i] + scores[n][2 * i + 1];
      }
      sum_[i] += sum;
    }
  }

  template <int kTiles>
  __device__ __forceinline__ static void rescale(const float (&factor)[2], float (&x)[kTiles][4]) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) x[n][e] *= factor[e / 2];
    }
  }

  __device__ __forceinline__ static void pack(const float (&x)[8][4], Weights& weights) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) weights[n / 2][n % 2 * 2 + i] = pack2<T>(x[n][2 * i], x[n][2 * i + 1]);
    }
  }
  // For the other group's products. What they read of the entries this group has waited for, to score them.
  __device__ __forceinline__ void give(const Weights& weights, uint8_t* panel) const {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
        *reinterpret_cast<uint32_t*>(panel + chunk_at(row_ + 8 * i, n) + lane_ % 4 * 4) = weights[n / 2][n % 2 * 2 + i];
    }
    async_proxy_fence();
  }

  // The group's half of the latents, 16 keys at a time.
  __device__ __forceinline__ uint64_t values(int tile) const {
    return matrix_descriptor(shared_address(s.entries[tile][kGroup * kValuePanels]), kPanelBytes);
  }
  __device__ __forceinline__ void start_own_values(const Weights& weights, float (&out)[32][4]) {
    const uint64_t v = values(kGroup);
    pin(out);
    wgmma_begin();
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) wgmma_values<T>(out, weights[step], advanced(v, step * 16 * 128));
    wgmma_commit();
  }
  __device__ __forceinline__ void start_other_values(const uint8_t* weights, float (&out)[32][4]) {
    const uint64_t w = matrix_descriptor(shared_address(weights)), v = values(1 - kGroup);
    pin(out);
    wgmma_begin();
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) wgmma_values<T>(out, advanced(w, step * 32), advanced(v, step * 16 * 128));
    wgmma_commit();
  }

  // The first group: its weights are relative to what it knows, and the second's follow.
  __device__ __forceinline__ void attend_ahead(float (&scores)[8][4], float (&out)[32][4]) {
    float most[2] = {most_[0], most_[1]}, factor[2];
    Weights weights;
    raise(scores, most);
    say_most(most);
    tell(kFirstMost);
    follow(most, factor);
    weigh(scores);
    pack(scores, weights);
    rescale(factor, out);
    start_own_values(weights, out);
    wgmma_wait<0>();
    free_half(0, 0);
    pin(out);
    wait_to_be_told(kSecondMost);
    hear_most(most);
    follow(most, factor);
    rescale(factor, scores);
    pack(scores, weights);
    give(weights, s.entries[0][kWeights]);
    tell(kFirstWeights);
    rescale(factor, out);
    wait_to_be_told(kSecondWeights);
    start_other_values(s.weights, out);
    wgmma_wait<0>();
    free_half(1, 0);
    pin(out);
  }

  __device__ __forceinline__ void attend_behind(float (&scores)[8][4], float (&out)[32][4]) {
    float most[2], factor[2];
    Weights weights;
    wait_to_be_told(kFirstMost);
    hear_most(most);
    raise(scores, most);
    say_most(most);
    tell(kSecondMost);
    follow(most, factor);
    weigh(scores);
    pack(scores, weights);
    rescale(factor, out);
    start_own_values(weights, out);
    give(weights, s.weights);
    tell(kSecondWeights);
    wait_to_be_told(kFirstWeights);
    start_other_values(s.entries[0][kWeights], out);
    wgmma_wait<1>();
    free_half(1, 1);
    wgmma_wait<0>();
    free_half(0, 1);
    pin(out);
  }

  // The split's result: to scratch, or put together with the row's splits before it, and the last of them to where results go.
  __device__ __forceinline__ void finish(int split, float (&out)[32][4]) {
    float2 softmax[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sum_[i] += __shfl_xor_sync(kAllLanes, sum_[i], 1);
      sum_[i] += __shfl_xor_sync(kAllLanes, sum_[i], 2);
      if (lane_ % 4 == 0) s.sums[kGroup][row_ + 8 * i] = sum_[i];
    }
    named_barrier_wait(kAttendBarrier, kAttending);
#pragma unroll
    for (int i = 0; i < 2; ++i) softmax[i] = {most_[i], s.sums[0][row_ + 8 * i] + s.sums[1][row_ + 8 * i]};
    const bool speaks = kGroup == 0 && lane_ % 4 == 0;
    if (walk_.end - walk_.first == 1 && a.rule.splits(walk_.keys.keys) > 1) {  // others have the row's other splits
      const auto cell = [&](int head) {
        return (static_cast<int64_t>(blockIdx.z) * a.p.num_heads + first_head_ + head) * a.splits + split;
      };
      store(out, [&](int head) { return a.sums + cell(head) * kWgmmaLatent; });
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (speaks && has_head(i)) a.softmax[cell(row_ + 8 * i)] = softmax[i];
      }
      return;
    }
    Merge merge[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) merge[i] = Merge(split == walk_.first ? float2{-INFINITY, 0.0f} : before_[i], softmax[i]);
    if (split > walk_.first) add_before(merge, out);
#pragma unroll
    for (int i = 0; i < 2; ++i) before_[i] = merge[i].softmax;
    if (split < walk_.end - 1) return put_aside(out);
    rescale({merge[0].inverse(), merge[1].inverse()}, out);
    store(out, [&](int head) { return a.p.out + (row_head(0) - row_ + head) * kWgmmaLatent; });
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (speaks && has_head(i) && a.p.lse != nullptr) a.p.lse[row_head(i)] = lse_of(before_[i]);
    }
  }

  // What is put aside between splits lies where the row's result will, in an order of its own: of the place of eight heads the n-th
  // 512 bytes of this group, for the warp that has them. All eight are there: walks_splits().
  __device__ __forceinline__ float4* aside(int i, int n) const {
    const int64_t first = row_head(i) - lane_ / 4;
    return reinterpret_cast<float4*>(a.p.out + (first + n / 2) * kWgmmaLatent + kGroup * 256 + n % 2 * 128) + lane_;
  }
  __device__ __forceinline__ void put_aside(const float (&out)[32][4]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (!has_head(i)) continue;
#pragma unroll
      for (int n = 0; n < 16; ++n)
        *aside(i, n) = {out[2 * n][2 * i], out[2 * n][2 * i + 1], out[2 * n + 1][2 * i], out[2 * n + 1][2 * i + 1]};
    }
  }
  __device__ __forceinline__ void add_before(const Merge (&merge)[2], float (&out)[32][4]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (!has_head(i)) continue;
#pragma unroll
      for (int n = 0; n < 16; ++n) {
        const float4 x = *aside(i, n);
        out[2 * n][2 * i] = merge[i](x.x, out[2 * n][2 * i]);
        out[2 * n][2 * i + 1] = merge[i](x.y, out[2 * n][2 * i + 1]);
        out[2 * n + 1][2 * i] = merge[i](x.z, out[2 * n + 1][2 * i]);
        out[2 * n + 1][2 * i + 1] = merge[i](x.w, out[2 * n + 1][2 * i + 1]);
      }
    }
  }

  // The warp's 16 heads, each to where to(head) says, through shared memory where queries lay: so the warp writes 512 bytes of a
  // head at a time. Eight heads' 32 bytes at a time took 25 us a block.
  template <typename To>
  __device__ __forceinline__ void store(const float (&out)[32][4], To&& to) {
    constexpr int kPitch = 128 + 8;  // floats: rows that are written at once meet different banks
    static_assert(sizeof(s.q) >= kAttending / 2 * kPitch * sizeof(float));
    const int first = row_ - lane_ / 4;
    float* staged = reinterpret_cast<float*>(s.q) + (kGroup * kHeads + first) * kPitch;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      __syncwarp();
#pragma unroll
      for (int n = 0; n < 16; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float* x = out[half * 16 + n] + 2 * i;
          *reinterpret_cast<float2*>(staged + (lane_ / 4 + 8 * i) * kPitch + n * 8 + lane_ % 4 * 2) = {x[0], x[1]};
        }
      }
      __syncwarp();
#pragma unroll 8
      for (int head = 0; head < 16; ++head) {
        if (first_head_ + first + head >= a.p.num_heads) break;
        const float4 x = *reinterpret_cast<const float4*>(staged + head * kPitch + lane_ * 4);
        *reinterpret_cast<float4*>(to(first + head) + kGroup * 256 + half * 128 + lane_ * 4) = x;
      }
    }
  }

  const AttendArgs& a;
  const Walk& walk_;
  Shared& s;
  const int lane_, row_, first_head_;
  const float scale_;
  float most_[2], sum_[2];  // of heads row_ and row_ + 8; sums of the group's tiles, of this thread's keys
  float2 before_[2];        // of the splits before
  uint32_t turn_ = 0;       // parity of the pairs of tiles
};

__device__ void store_nothing(const AttendArgs& a) {
  const int first_head = static_cast<int>(blockIdx.x) * kHeads, heads = min(kHeads, a.p.num_heads - first_head);
  const int64_t row_head = static_cast<int64_t>(a.first_row + blockIdx.z) * a.p.num_heads + first_head;
  for (int i = threadIdx.x - 128; i < heads * kWgmmaLatent; i += kAttending) a.p.out[row_head * kWgmmaLatent + i] = 0.0f;
  for (int i = threadIdx.x - 128; i < heads && a.p.lse != nullptr; i += kAttending) a.p.lse[row_head + i] = -INFINITY;
}

#endif

// Grid: (tiles of heads, splits, or 1 where a thread block walks all of them, rows).
template <typename T>
__global__ void __launch_bounds__(kThreads, 1) attend_wgmma(const __grid_constant__ AttendArgs a) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  auto& s = *reinterpret_cast<Shared*>(shared_memory());
  if (blockIdx.y > 0 && Walk(a).end <= static_cast<int>(blockIdx.y)) return;  // the first of an empty row says that it is
  if (threadIdx.x == 0) init_barriers(s);
  __syncthreads();
  const int group = __shfl_sync(kAllLanes, threadIdx.x / 128, 0);  // the same in a warp, and known to be
  if (group == 0) {
    keep_registers<kCopyRegisters>();
    if (threadIdx.x == 0) prefetch_queries(a);
    const Walk walk(a);
    Copier(a, walk, s).run();
  } else {
    take_registers<kAttendRegisters>();
    load_queries<T>(a, s);  // meanwhile the copies begin
    const Walk walk(a);
    if (walk.end == 0) {
      store_nothing(a);
    } else if (group == 1) {
      Attender<T, 0>(a, walk, s).run();
    } else {
      Attender<T, 1>(a, walk, s).run();
    }
  }
#endif
}

auto kernel_of(DType dtype) { return dtype == DType::f16 ? &attend_wgmma<__half> : &attend_wgmma<__nv_bfloat16>; }

}  // namespace

cudaError_t prepare_wgmma() {
  for (DType dtype : {DType::f16, DType::bf16}) {
    const cudaError_t e = cudaFuncSetAttribute(kernel_of(dtype), cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared));
    if (e != cudaSuccess) return e;
  }
  return cudaSuccess;
}

void attend_wgmma(const AttendArgs& a, int32_t rows, bool walks_splits, cudaStream_t stream) {
  const dim3 grid(ceil_div(a.p.num_heads, kHeads), walks_splits ? 1 : a.splits, rows);
  kernel_of(a.kv.dtype)<<<grid, dim3(kThreads), sizeof(Shared), stream>>>(a);
  check_launch("latent attention");
}

}  // namespace fovea::cuda::mla
