// Absorbed attention on Hopper's tensor cores: a thread block takes 64 heads of a row. Its first warpgroup copies entries, each from
// where it lies, to two tiles of 64 keys; the others attend. Of two tiles each of these scores one, and then multiplies the weights of
// both with its half of the latents: the result, 64 x 512, fills the registers of both. Weights go through shared memory, where the
// part of a tile that carries positions lay: it has no values.
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
constexpr int kAttending = 2 * 128, kThreads = 128 + kAttending;
static_assert(kWgmmaRope == 64 && kWgmmaLatent == 2 * 256 && SplitRule::kTileKeys % kKeys == 0);

struct Shared {
  alignas(1024) uint8_t q[kPanels][kPanelBytes];           // [heads]
  alignas(1024) uint8_t entries[2][kPanels][kPanelBytes];  // of two tiles [keys]
  float most[2][kHeads];                                   // the greatest score of each head in a tile
  float sums[2][kHeads];
  uint32_t seen[2][2];  // a bit a key of a tile
  alignas(8) uint64_t full[2], empty[2];
};

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int kWeights = kPanels - 1;  // the panel that weights replace
constexpr int kAttendBarrier = 1;
constexpr int kCopyRegisters = 40, kAttendRegisters = 232;  // of 64K: 168 a thread at the start

// Splits that a thread block walks, one after the other.
struct Walk {
  int first, end, each;
};

// Byte of a 16-byte chunk of a row within a panel.
__device__ __forceinline__ int chunk_at(int row, int chunk) { return row * 128 + ((chunk ^ (row & 7)) << 4); }

// ---- The copying warps: two a tile, a lane a key -----------------------------------------------------------------------------

__device__ __forceinline__ void copy_entries(const AttendArgs& a, const RowKeys& keys, const Walk& walk, Shared& s) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, buffer = warp / 2, first_key = warp % 2 * 32;
  const uint32_t to = shared_address(s.entries[buffer][0]);
  uint32_t uses = 0, read = 0;
  for (int split = walk.first; split < walk.end; ++split) {
    const int end = min(keys.keys, (split + 1) * walk.each);
    const auto place_at = [&](int tile) { return tile + first_key + lane < end ? keys.place(a.kv, tile + first_key + lane) : -1; };
    int tile = split * walk.each + buffer * kKeys;
    int64_t next = place_at(tile);
    for (; tile < end; tile += 2 * kKeys) {
      const int64_t place = next;
      barrier_wait(s.empty[buffer], (uses++ & 1) ^ 1);
      const uint32_t seen = __ballot_sync(0xffffffffu, place >= 0);
      if (lane == 0) s.seen[buffer][warp % 2] = seen;
      read += __popc(seen);
#pragma unroll 1
      for (int k = 0; k < 32; k += 4) {  // four keys at a time, eight lanes each
        const int64_t from = __shfl_sync(0xffffffffu, place, k + lane / 8);
        const auto* entry = static_cast<const char*>(a.kv.k) + (from < 0 ? 0 : from * 2) + lane % 8 * 16;
        const uint32_t row = to + chunk_at(first_key + k + lane / 8, lane % 8);
#pragma unroll
        for (int panel = 0; panel < kPanels; ++panel) copy_async_16(row + panel * kPanelBytes, entry + panel * 128, from >= 0);
      }
      copy_async_commit();
      next = place_at(tile + 2 * kKeys);
      copy_async_wait<0>();
      async_proxy_fence();
      barrier_arrive(s.full[buffer]);
    }
  }
  if (a.p.keys_read != nullptr && blockIdx.x == 0 && lane == 0 && read > 0)
    atomicAdd(reinterpret_cast<unsigned long long*>(a.p.keys_read + a.first_row + blockIdx.z),
              static_cast<unsigned long long>(read));
}

// ---- The attending warpgroups -------------------------------------------------------------------------------------------------

template <typename T>
class Attender {
 public:
  __device__ Attender(const AttendArgs& args, const RowKeys& keys, const Walk& walk, Shared& shared, int group)
      : a(args),
        keys_(keys),
        walk_(walk),
        s(shared),
        group_(group),
        lane_(threadIdx.x % 32),
        row_(threadIdx.x % 128 / 32 * 16 + lane_ / 4),
        first_head_(static_cast<int>(blockIdx.x) * kHeads),
        scale_(args.p.scale * kLog2e) {}

  __device__ __forceinline__ void run() {
    load_queries();
    for (int split = walk_.first; split < walk_.end; ++split) {
      float out[2][16][4] = {};
      attend(split * walk_.each, min(keys_.keys, (split + 1) * walk_.each), out);
      finish(split, out);
    }
  }

 private:
  __device__ __forceinline__ int64_t row_head(int i) const {
    return static_cast<int64_t>(a.first_row + blockIdx.z) * a.p.num_heads + first_head_ + row_ + 8 * i;
  }
  __device__ __forceinline__ bool has_head(int i) const { return first_head_ + row_ + 8 * i < a.p.num_heads; }

  // Rounded to T; heads that there are not are zero.
  __device__ __forceinline__ void load_queries() {
    constexpr int kChunks = kEntry / 8;
    const int thread = threadIdx.x - 128;
    const float* q = a.p.q + (static_cast<int64_t>(a.first_row + blockIdx.z) * a.p.num_heads + first_head_) * kEntry;
    for (int i = thread; i < kHeads * kChunks; i += kAttending) {
      const int head = i / kChunks, chunk = i % kChunks;
      float4 x = {}, y = {};
      if (first_head_ + head < a.p.num_heads) {
        const auto* from = reinterpret_cast<const float4*>(q + static_cast<int64_t>(head) * kEntry + chunk * 8);
        x = from[0], y = from[1];
      }
      *reinterpret_cast<uint4*>(s.q[chunk / 8] + chunk_at(head, chunk % 8)) =
          make_uint4(pack2<T>(x.x, x.y), pack2<T>(x.z, x.w), pack2<T>(y.x, y.y), pack2<T>(y.z, y.w));
    }
    async_proxy_fence();
    named_barrier_wait(kAttendBarrier, kAttending);
  }

  __device__ __forceinline__ void attend(int begin, int end, float (&out)[2][16][4]) {
    most_[0] = most_[1] = -INFINITY;
    sum_[0] = sum_[1] = 0.0f;
    for (int tile = begin; tile < end; tile += 2 * kKeys) {
      const bool both = tile + kKeys < end, mine = group_ == 0 || both;
      barrier_wait(s.full[0], uses_[0] & 1);
      if (both) barrier_wait(s.full[1], uses_[1] & 1);
      float scores[8][4], correction[2];
      if (mine) score(scores);
      share_most(mine, scores);
      follow_most(correction);
      if (mine) weigh(scores, correction);
      if (!mine) sum_[0] *= correction[0], sum_[1] *= correction[1];
      rescale(correction, out);
      async_proxy_fence();
      named_barrier_wait(kAttendBarrier, kAttending);
      add_values(both, out);
      ++uses_[0];
      uses_[1] += both;
    }
  }

  // The group's tile, scaled to log2 units; keys that are not seen are -inf.
  __device__ __forceinline__ void score(float (&scores)[8][4]) {
    pin(scores);
    wgmma_begin();
#pragma unroll
    for (int step = 0; step < kEntry / 16; ++step) {
      const uint64_t q = matrix_descriptor(shared_address(s.q[step / 4]) + step % 4 * 32);
      const uint64_t k = matrix_descriptor(shared_address(s.entries[group_][step / 4]) + step % 4 * 32);
      wgmma_keys<T>(scores, q, k, step > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    pin(scores);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const uint32_t seen = s.seen[group_][n / 4] >> (n % 4 * 8 + lane_ % 4 * 2);
#pragma unroll
      for (int e = 0; e < 4; ++e) scores[n][e] = (seen >> (e & 1) & 1) != 0 ? scores[n][e] * scale_ : -INFINITY;
    }
  }

  __device__ __forceinline__ void share_most(bool mine, const float (&scores)[8][4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float most = -INFINITY;
      if (mine) {
#pragma unroll
        for (int n = 0; n < 8; ++n) most = fmaxf(most, fmaxf(scores[n][2 * i], scores[n][2 * i + 1]));
      }
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
      if (lane_ % 4 == 0) s.most[group_][row_ + 8 * i] = most;
    }
    named_barrier_wait(kAttendBarrier, kAttending);
  }

  // What weights are relative to: the greatest score, or anything finite where nothing was seen.
  __device__ __forceinline__ float base(int i) const { return most_[i] == -INFINITY ? 0.0f : most_[i]; }

  __device__ __forceinline__ void follow_most(float (&correction)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float before = most_[i];
      most_[i] = fmaxf(before, fmaxf(s.most[0][row_ + 8 * i], s.most[1][row_ + 8 * i]));
      correction[i] = exp2_fast(before - base(i));
    }
  }

  // Scores become weights, and go to where the tile's last panel lay.
  __device__ __forceinline__ void weigh(const float (&scores)[8][4], const float (&correction)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float sum = 0.0f;
      const int row = row_ + 8 * i;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        const float x = exp2_fast(scores[n][2 * i] - base(i)), y = exp2_fast(scores[n][2 * i + 1] - base(i));
        sum += x + y;
        *reinterpret_cast<uint32_t*>(s.entries[group_][kWeights] + chunk_at(row, n) + lane_ % 4 * 4) = pack2<T>(x, y);
      }
      sum_[i] = fmaf(sum_[i], correction[i], sum);
    }
  }

  __device__ __forceinline__ static void rescale(const float (&correction)[2], float (&out)[2][16][4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int n = 0; n < 16; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) out[half][n][e] *= correction[e / 2];
      }
    }
  }

  __device__ __forceinline__ void start_values(int tile, float (&out)[2][16][4]) {
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      const uint64_t weights = matrix_descriptor(shared_address(s.entries[tile][kWeights]) + step * 32);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t panel = shared_address(s.entries[tile][0]) + (group_ * 4 + half * 2) * kPanelBytes;
        wgmma_values<T>(out[half], weights, matrix_descriptor(panel + step * 16 * 128, kPanelBytes));
      }
    }
    wgmma_commit();
  }

  __device__ __forceinline__ void add_values(bool both, float (&out)[2][16][4]) {
    pin(out[0]);
    pin(out[1]);
    wgmma_begin();
    start_values(0, out);
    if (both) {
      start_values(1, out);
      wgmma_wait<1>();
      if (lane_ == 0) barrier_arrive(s.empty[0]);
    }
    wgmma_wait<0>();
    if (lane_ == 0) barrier_arrive(s.empty[both ? 1 : 0]);
    pin(out[0]);
    pin(out[1]);
  }

  // visit(half, n, i, at): two neighbours of head row_ + 8 i, elements `at` and the next of its result.
  template <typename Visit>
  __device__ __forceinline__ void each_pair(Visit&& visit) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int n = 0; n < 16; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) visit(half, n, i, group_ * 256 + half * 128 + n * 8 + lane_ % 4 * 2);
      }
    }
  }

  // The split's result: to scratch, or merged with that of the splits before, which lies where the row's result will.
  __device__ __forceinline__ void finish(int split, float (&out)[2][16][4]) {
    float2 softmax[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sum_[i] += __shfl_xor_sync(0xffffffffu, sum_[i], 1);
      sum_[i] += __shfl_xor_sync(0xffffffffu, sum_[i], 2);
      if (lane_ % 4 == 0) s.sums[group_][row_ + 8 * i] = sum_[i];
    }
    named_barrier_wait(kAttendBarrier, kAttending);
#pragma unroll
    for (int i = 0; i < 2; ++i) softmax[i] = {most_[i], s.sums[0][row_ + 8 * i] + s.sums[1][row_ + 8 * i]};
    const bool alone = walk_.end - walk_.first == 1 && a.rule.splits(keys_.keys) > 1;  // others have the row's other splits
    if (alone) return store_split(split, softmax, out);
    Merge merge[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) merge[i] = Merge(split == walk_.first ? float2{-INFINITY, 0.0f} : before_[i], softmax[i]);
    const bool last = split == walk_.end - 1;
    each_pair([&](int half, int n, int i, int at) {
      if (!has_head(i)) return;
      auto* to = reinterpret_cast<float2*>(a.p.out + row_head(i) * kWgmmaLatent + at);
      const float2 old = split == walk_.first ? float2{0.0f, 0.0f} : *to;
      float2 x = {merge[i](old.x, out[half][n][2 * i]), merge[i](old.y, out[half][n][2 * i + 1])};
      if (last) x = {x.x * merge[i].inverse(), x.y * merge[i].inverse()};
      *to = x;
    });
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      before_[i] = merge[i].softmax;
      if (last && group_ == 0 && lane_ % 4 == 0 && has_head(i) && a.p.lse != nullptr) a.p.lse[row_head(i)] = lse_of(before_[i]);
    }
  }

  __device__ __forceinline__ void store_split(int split, const float2 (&softmax)[2], const float (&out)[2][16][4]) {
    const auto cell = [&](int i) {
      return (static_cast<int64_t>(blockIdx.z) * a.p.num_heads + first_head_ + row_ + 8 * i) * a.splits + split;
    };
    each_pair([&](int half, int n, int i, int at) {
      if (has_head(i))
        *reinterpret_cast<float2*>(a.sums + cell(i) * kWgmmaLatent + at) = {out[half][n][2 * i], out[half][n][2 * i + 1]};
    });
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (group_ == 0 && lane_ % 4 == 0 && has_head(i)) a.softmax[cell(i)] = softmax[i];
    }
  }

  const AttendArgs& a;
  const RowKeys& keys_;
  const Walk& walk_;
  Shared& s;
  const int group_, lane_, row_, first_head_;
  const float scale_;
  float most_[2], sum_[2];  // of heads row_ and row_ + 8; sums of the group's tiles, of this thread's keys
  float2 before_[2];        // of the splits before
  uint32_t uses_[2] = {0, 0};
};

__device__ void store_nothing(const AttendArgs& a) {
  const int first_head = static_cast<int>(blockIdx.x) * kHeads, heads = min(kHeads, a.p.num_heads - first_head);
  const int64_t row_head = static_cast<int64_t>(a.first_row + blockIdx.z) * a.p.num_heads + first_head;
  for (int i = threadIdx.x; i < heads * kWgmmaLatent; i += kThreads) a.p.out[row_head * kWgmmaLatent + i] = 0.0f;
  for (int i = threadIdx.x; i < heads && a.p.lse != nullptr; i += kThreads) a.p.lse[row_head + i] = -INFINITY;
}

#endif

// Grid: (tiles of heads, splits, or 1 where a thread block walks all of them, rows).
template <typename T>
__global__ void __launch_bounds__(kThreads, 1) attend_wgmma(const __grid_constant__ AttendArgs a) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  auto& s = *reinterpret_cast<Shared*>(shared_memory());
  const RowKeys keys(a, a.first_row + static_cast<int>(blockIdx.z));
  const int splits = a.rule.splits(keys.keys), split = static_cast<int>(blockIdx.y);
  if (splits == 0) {
    if (split == 0) store_nothing(a);
    return;
  }
  if (split >= splits) return;
  const bool all = gridDim.y == 1;
  const Walk walk{all ? 0 : split, all ? splits : split + 1, a.rule.split_keys(keys.keys)};
  if (threadIdx.x == 0) {
    for (int b = 0; b < 2; ++b) {
      barrier_init(s.full[b], 64);
      barrier_init(s.empty[b], kAttending / 32);
    }
    barrier_init_fence();
  }
  __syncthreads();
  const int group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0) - 1;  // the same in a warp, and known to be
  if (group < 0) {
    keep_registers<kCopyRegisters>();
    copy_entries(a, keys, walk, s);
  } else {
    take_registers<kAttendRegisters>();
    Attender<T>(a, keys, walk, s, group).run();
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
