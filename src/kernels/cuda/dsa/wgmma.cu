// Scores on Hopper's tensor cores. One warp copies tiles of keys by TMA; two warpgroups multiply each tile with the queries of
// their own rows, which stay in shared memory: a product has keys for rows and the heads of the rows for columns, so that a score's
// sum over heads needs no more than the four lanes that share a key. One warpgroup's sums overlap the other's products.
#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/dsa/args.h"
#include "kernels/cuda/dsa/candidates.cuh"
#include "kernels/cuda/dsa/products.cuh"
#include "kernels/cuda/dsa/rows.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/prefill/hopper.cuh"

namespace fovea::cuda::dsa {
namespace {

using namespace prefill;

struct WgmmaArgs {
  ScoreArgs a;
  int32_t box_keys = 0;
  CUtensorMap keys;
};

template <typename Element, int kPaddedHeads>
struct Traits {
  using T = Element;
  static constexpr bool kFp8 = sizeof(T) == 1;
  static constexpr int kHeads = kPaddedHeads;
  static constexpr int kRows = kGroupLanes / kHeads;            // of a warpgroup
  static constexpr int kPanels = kPaddedDim * sizeof(T) / 128;  // rows of 128 bytes: what TMA and wgmma permute
  static constexpr int kPanelBytes = kWgmmaKeys * 128;
  static constexpr int kStages = kFp8 ? 8 : 5;
  static constexpr int kThreads = 128 * (kGroups + 1);
};

template <typename Traits>
struct WgmmaShared {
  alignas(1024) uint8_t q[kGroups][Traits::kPanels][kGroupLanes * 128];
  alignas(1024) uint8_t k[Traits::kStages][Traits::kPanels][Traits::kPanelBytes];
  alignas(16) float scales[Traits::kStages][Traits::kFp8 ? kWgmmaKeys : 4];
  alignas(8) uint64_t full[Traits::kStages], empty[Traits::kStages];
  uint32_t counts[kGroups][Traits::kRows];
  ChoiceShared<128> choice[kGroups];
};

// The stages in turn: which one, and the parity of its turn.
template <int kStages>
struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void next() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

// ---- The copying warp ------------------------------------------------------------------------------------------------------

// Each lane copies one box of every tile: box_keys keys that lie together in a page, 128 bytes of them; and with it their scales.
template <typename Traits>
class Copier {
 public:
  __device__ Copier(const WgmmaArgs& args, WgmmaShared<Traits>& shared)
      : a_(args),
        s_(shared),
        lane_(static_cast<int>(threadIdx.x) % 32),
        panel_(lane_ % Traits::kPanels),
        first_key_(lane_ / Traits::kPanels * args.box_keys) {}

  __device__ void run(const RowRun& run) {
    const KeyRange range = key_range(run.longest, kWgmmaKeys, blockIdx.y, a_.a.pass.splits);
    int64_t slot = slot_of_box(run, range.begin, range);
    for (int32_t tile = range.begin; tile < range.end; ++tile) {
      const int64_t next = slot_of_box(run, tile + 1, range);
      barrier_wait(s_.empty[ring_.stage], ring_.parity ^ 1);
      copy(slot);
      ring_.next();
      slot = next;
    }
  }

 private:
  // Negative: this lane has no box of the tile.
  __device__ int64_t slot_of_box(const RowRun& run, int32_t tile, const KeyRange& range) const {
    const int32_t key = tile * kWgmmaKeys + first_key_;
    return first_key_ < kWgmmaKeys && tile < range.end && key < run.longest ? slot_of(a_.a.p.keys, run.seq, key) : -1;
  }

  __device__ void copy(int64_t slot) const {
    const IndexKeysView& keys = a_.a.p.keys;
    uint64_t& full = s_.full[ring_.stage];
    const bool mine = slot >= 0, scales = Traits::kFp8 && mine;
    const int boxes = __popc(__ballot_sync(kAllLanes, mine));
    constexpr int kBytes = 128 + (Traits::kFp8 ? 4 : 0);  // of a key, and its scale
    if (lane_ == 0) barrier_arrive_expecting(full, boxes * a_.box_keys * kBytes);
    __syncwarp();
    const int shift = __ffs(keys.block_size) - 1;
    if (mine) {
      copy_box(s_.k[ring_.stage][panel_] + first_key_ * 128, a_.keys, panel_ * (128 / static_cast<int>(sizeof(typename Traits::T))),
               static_cast<int>(slot) & (keys.block_size - 1), 0, static_cast<int>(slot >> shift), full);
    }
    if (scales) copy_bytes(&s_.scales[ring_.stage][first_key_], keys.scale + slot, a_.box_keys * 4, full);
  }

  __device__ static void copy_bytes(void* to, const void* from, int bytes, uint64_t& barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)),
        "l"(from), "r"(bytes), "r"(shared_address(&barrier))
        : "memory");
  }

  const WgmmaArgs& a_;
  WgmmaShared<Traits>& s_;
  const int lane_, panel_, first_key_;
  Ring<Traits::kStages> ring_;
};

// ---- The scoring warpgroups ------------------------------------------------------------------------------------------------

template <typename Traits>
class GroupScorer {
 public:
  __device__ GroupScorer(const ScoreArgs& args, WgmmaShared<Traits>& shared, int group)
      : a_(args), s_(shared), group_(group), lane_(static_cast<int>(threadIdx.x) % 32), odd_row_(lane_ >> 1 & 1) {}

  __device__ __forceinline__ void run(const RowRun& run) {
    const KeyRange range = key_range(run.longest, kWgmmaKeys, blockIdx.y, a_.pass.splits);
    first_row_ = run.first + group_ * kRows;
    rows_ = max(0, min(run.rows - group_ * kRows, kRows));
    if (rows_ == 0) return pass(range);
    take_rows();
    if (rows_ <= kHalf) {
      score_half(range);
    } else {
      score_both(range);
    }
    sync();
    if (a_.p.logits == nullptr && rank() < rows_) {
      a_.counts[list_of(a_, first_row_ + rank())] = static_cast<int32_t>(s_.counts[group_][rank()]);
    }
  }

 private:
  static constexpr int kRows = Traits::kRows, kHalf = kRows / 2, kHeads = Traits::kHeads;
  static constexpr int kTilesOfRow = kHeads / 8;  // of 8 columns
  static constexpr int kBarrier = 1;              // and the next: of each warpgroup
  static constexpr int kHeld = 32;                // candidates of a thread in registers during a cut: no products are under way

  static constexpr int kTiles = kHalf * kTilesOfRow, kScores = (kHalf + 1) / 2;  // of half of the rows

  // What a lane knows of half of the rows, whose columns are kTiles tiles: the weights of its columns; of the rows whose scores
  // end in it, row_of(i), how far they see and what beats them.
  struct Own {
    float weights[kTiles][2];
    int32_t lengths[kScores];
    float bounds[kScores];
  };

  __device__ static int rank() { return Group<128>::rank(); }
  __device__ void sync() const { Group<128>{kBarrier + group_}.sync(); }
  // True in all threads of the warpgroup if it was in one of them.
  __device__ bool any_of_group(bool mine) const {
    int any;
    asm volatile("{\n.reg .pred p, q;\nsetp.ne.b32 q, %1, 0;\nbar.red.or.pred p, %2, 128, q;\nselp.b32 %0, 1, 0, p;\n}\n"
                 : "=r"(any)
                 : "r"(static_cast<int>(mine)), "r"(kBarrier + group_)
                 : "memory");
    return __any_sync(kAllLanes, any) != 0;  // known to be the same in a warp
  }
  // The key of a tile whose scores end in this lane.
  __device__ int key_of_lane() const { return rank() / 32 * 16 + lane_ / 4 + 8 * (lane_ & 1); }

  __device__ void leave() {
    barrier_arrive(s_.empty[ring_.stage]);  // every lane: 1 to 3 % faster than one for its warp
    ring_.next();
  }

  __device__ void pass(const KeyRange& range) {
    for (int32_t tile = range.begin; tile < range.end; ++tile) {
      barrier_wait(s_.full[ring_.stage], ring_.parity);
      leave();
    }
  }

  // Half of the rows, or fewer.
  __device__ __forceinline__ void score_half(const KeyRange& range) {
    Own own[1];
    know_rows(own[0], 0);
    float products[kTiles][4] = {};  // or what a first product does not read would be kept from run to run
    for (int32_t tile = range.begin; tile < range.end; ++tile) {
      barrier_wait(s_.full[ring_.stage], ring_.parity);
      start_products(products, ring_.stage, 0);
      wgmma_wait<0>();
      pin(products);
      const float scale = scale_of_lane(ring_.stage);
      leave();
      float scores[1][kScores];
      sum_heads(own[0], products, scale, scores[0]);
      if (any_of_group(keep(own, tile, scores))) make_room(own);
    }
  }

  // While one half's sums are taken, the products of the other half are under way: a tile's second half while its first is summed,
  // the next tile's first half while its second is. Where products are under way across a branch or into the next turn of the loop,
  // the compiler has each wait for the one before. So the last tile is followed by its own first half once more, which nobody reads,
  // and after a cut, which needs the registers, a first half is multiplied again.
  __device__ __forceinline__ void score_both(const KeyRange& range) {
    Own own[2];
    know_rows(own[0], 0);
    know_rows(own[1], kHalf);
    float of_first[kTiles][4] = {}, of_second[kTiles][4] = {};
    for (int32_t tile = range.begin; tile < range.end;) {
      barrier_wait(s_.full[ring_.stage], ring_.parity);
      start_products(of_first, ring_.stage, 0);
      bool full;
      do {
        start_products(of_second, ring_.stage, kHalf);
        wgmma_wait<1>();
        pin(of_first);
        const float scale = scale_of_lane(ring_.stage);
        float scores[2][kScores];
        sum_heads(own[0], of_first, scale, scores[0]);
        const bool last = tile + 1 == range.end;
        Ring<Traits::kStages> ahead = ring_;
        if (!last) ahead.next();
        barrier_wait(s_.full[ahead.stage], ahead.parity);
        start_products(of_first, ahead.stage, 0);
        wgmma_wait<1>();
        pin(of_second);
        if (!last) leave();
        sum_heads(own[1], of_second, scale, scores[1]);
        full = any_of_group(keep(own, tile, scores));
        wgmma_wait<0>();
        pin(of_first);
        ++tile;
      } while (!full && tile < range.end);
      if (tile == range.end) leave();
      if (full) make_room(own);
    }
  }

  // Queries to shared memory, in the element of the keys: exact, as index_write left them. What pads a row is zero.
  __device__ __forceinline__ void take_rows() {
    constexpr int kOfChunk = 16 / sizeof(typename Traits::T), kChunks = kPaddedDim / kOfChunk;
    const IndexTopkParams& p = a_.p;
    sync();  // the rows before these are done with
#pragma unroll 2
    for (int i = rank(); i < rows_ * kHeads * kChunks; i += 128) {
      const int column = i / kChunks, chunk = i % kChunks, head = column % kHeads, element = chunk * kOfChunk;
      uint4 bytes = make_uint4(0, 0, 0, 0);
      if (head < p.heads && element < p.keys.dim) {
        bytes = narrow(p.q + (static_cast<int64_t>(first_row_ + column / kHeads) * p.heads + head) * p.keys.dim + element);
      }
      *reinterpret_cast<uint4*>(s_.q[group_][chunk / 8] + column * 128 + ((chunk % 8 ^ column % 8) << 4)) = bytes;
    }
    if (rank() < kRows) s_.counts[group_][rank()] = 0;
    async_proxy_fence();
    sync();
  }

  __device__ __forceinline__ void know_rows(Own& own, int from) const {
    const IndexTopkParams& p = a_.p;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const int row = from + n / kTilesOfRow, head = n % kTilesOfRow * 8 + 2 * (lane_ % 4);
      const float* weights = p.weights + static_cast<int64_t>(first_row_ + row) * p.heads + head;
#pragma unroll
      for (int e = 0; e < 2; ++e) own.weights[n][e] = row < rows_ && head + e < p.heads ? weights[e] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      own.lengths[i] = row_of(i) < kHalf && from + row_of(i) < rows_ ? scored_length(p, first_row_ + from + row_of(i)) : 0;
      own.bounds[i] = kNoBound;
    }
  }

  __device__ static uint4 narrow(const float* from) {
    uint32_t words[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      if constexpr (Traits::kFp8) {
        const float4 x = reinterpret_cast<const float4*>(from)[w];
        const uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(x.x, x.y), __NV_SATFINITE, __NV_E4M3);
        const uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(x.z, x.w), __NV_SATFINITE, __NV_E4M3);
        words[w] = low | high << 16;
      } else {
        const float2 x = reinterpret_cast<const float2*>(from)[w];
        words[w] = pack2<__nv_bfloat16>(x.x, x.y);
      }
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
  }

  // Of half of the rows, the one whose score i ends in this lane; none where that is kHalf or more.
  __device__ int row_of(int i) const { return 2 * i + odd_row_; }

  // Keys of a tile, in 16 rows of each warp, against the columns of the rows from `from` on.
  __device__ __forceinline__ void start_products(float (&products)[kTiles][4], int stage, int from) {
    pin(products);
    wgmma_begin();
#pragma unroll
    for (int step = 0; step < Traits::kPanels * 4; ++step) {
      const uint64_t k = matrix_descriptor(shared_address(s_.k[stage][step / 4]) + step % 4 * 32);
      const uint64_t q = matrix_descriptor(shared_address(s_.q[group_][step / 4]) + from * kHeads * 128 + step % 4 * 32);
      multiply<typename Traits::T>(products, k, q, step > 0);
    }
    wgmma_commit();
  }

  __device__ float scale_of_lane(int stage) const { return Traits::kFp8 ? s_.scales[stage][key_of_lane()] : 1.0f; }

  // max(x, 0), and a NaN where x is one.
  __device__ __forceinline__ static float relu(float x) {
    float y;
    asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
    return y;
  }

  // Sums over heads: the scores that end in this lane.
  __device__ __forceinline__ void sum_heads(const Own& own, const float (&products)[kTiles][4], float scale,
                                            float (&scores)[kScores]) const {
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      float sums[2] = {};  // of rows 2 i and 2 i + 1
#pragma unroll
      for (int r = 0; r < 2 && 2 * i + r < kHalf; ++r) {
        float low = 0.0f, high = 0.0f;  // the product's rows lane / 4 and lane / 4 + 8
#pragma unroll
        for (int t = 0; t < kTilesOfRow; ++t) {
          const int n = (2 * i + r) * kTilesOfRow + t;
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            low = fmaf(own.weights[n][e], relu(products[n][e]), low);
            high = fmaf(own.weights[n][e], relu(products[n][e + 2]), high);
          }
        }
        // Of four lanes that hold parts of two keys' sums, two get the one key's and two the other's.
        const bool upper = (lane_ & 1) != 0;
        const float other = __shfl_xor_sync(kAllLanes, upper ? low : high, 1);
        sums[r] = (upper ? high : low) + other;
      }
      const float other = __shfl_xor_sync(kAllLanes, odd_row_ != 0 ? sums[0] : sums[1], 2);
      scores[i] = ((odd_row_ != 0 ? sums[1] : sums[0]) + other) * scale;
    }
  }

  // What a tile's scores say of the keys: those that beat a row's bound join its list. True if a list may not hold another tile.
  template <int kHalves>
  __device__ __forceinline__ bool keep(const Own (&own)[kHalves], int32_t tile, const float (&scores)[kHalves][kScores]) {
    const int32_t position = tile * kWgmmaKeys + key_of_lane();
    if (a_.p.logits != nullptr) {
#pragma unroll
      for (int n = 0; n < kHalves * kScores; ++n) {
        const int half = n / kScores, i = n % kScores;
        const int64_t row = first_row_ + half * kHalf + row_of(i) - a_.first_row;
        if (position < own[half].lengths[i]) a_.p.logits[row * a_.p.max_len + position] = scores[half][i];
      }
      return false;
    }
    unsigned takers[kHalves * kScores], all = 0;
#pragma unroll
    for (int n = 0; n < kHalves * kScores; ++n) {
      const int half = n / kScores, i = n % kScores;
      takers[n] = __ballot_sync(kAllLanes, position < own[half].lengths[i] && beats(scores[half][i], own[half].bounds[i]));
      all |= takers[n];
    }
    if (all == 0) return false;
    // Lane r makes room in the list of row r, for all rows at once.
    constexpr unsigned kOfRows[2] = {0x33333333u, 0xccccccccu};  // lanes of even and of odd rows
    int mine = 0;
#pragma unroll
    for (int row = 0; row < kHalves * kHalf; ++row) {
      if (lane_ == row) mine = __popc(takers[row / kHalf * kScores + row % kHalf / 2] & kOfRows[row % kHalf % 2]);
    }
    uint32_t first = 0;
    if (mine != 0) first = atomicAdd(&s_.counts[group_][lane_], static_cast<uint32_t>(mine));
    const unsigned before = ((1u << lane_) - 1) & (odd_row_ != 0 ? kOfRows[1] : kOfRows[0]);
    bool full = false;
#pragma unroll
    for (int n = 0; n < kHalves * kScores; ++n) {
      const int half = n / kScores, i = n % kScores, row = half * kHalf + row_of(i);
      const uint32_t at = __shfl_sync(kAllLanes, first, row) + static_cast<uint32_t>(__popc(takers[n] & before));
      if ((takers[n] >> lane_ & 1) == 0) continue;
      list(row).entries[at] = candidate(scores[half][i], position);
      full |= at + kWgmmaKeys >= static_cast<uint32_t>(a_.capacity);
    }
    return full;
  }

  __device__ List list(int row) const {
    return {a_.lists + static_cast<int64_t>(list_of(a_, first_row_ + row)) * a_.capacity, &s_.counts[group_][row]};
  }

  // By all threads of the warpgroup: cuts the lists that may not hold another tile, and raises their rows' bounds.
  template <int kHalves>
  __device__ __forceinline__ void make_room(Own (&own)[kHalves]) {
    for (int row = 0; row < rows_; ++row) {
      if (s_.counts[group_][row] + kWgmmaKeys <= static_cast<uint32_t>(a_.capacity)) continue;
      const float bound = list(row).template cut<kHeld>(Alone<128>{kBarrier + group_}, static_cast<uint32_t>(a_.p.topk),
                                                        cut_slack(a_), s_.choice[group_]);
#pragma unroll
      for (int n = 0; n < kHalves * kScores; ++n) {
        if (n / kScores * kHalf + row_of(n % kScores) == row) own[n / kScores].bounds[n % kScores] = bound;
      }
    }
    sync();  // all have read the counts
  }

  const ScoreArgs& a_;
  WgmmaShared<Traits>& s_;
  const int group_, lane_, odd_row_;
  int first_row_ = 0, rows_ = 0;
  Ring<Traits::kStages> ring_;
};

template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1) score(const __grid_constant__ WgmmaArgs args) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  auto& s = *reinterpret_cast<WgmmaShared<Traits>*>(shared_memory());
  const ScoreArgs& a = args.a;
  const int32_t begin = a.first_row + static_cast<int32_t>(blockIdx.x) * kGroups * Traits::kRows;
  const int32_t end = min(begin + kGroups * Traits::kRows, a.first_row + a.pass.rows);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Traits::kStages; ++stage) {
      barrier_init(s.full[stage], 1);
      barrier_init(s.empty[stage], 128 * kGroups);
    }
    barrier_init_fence();
  }
  __syncthreads();
  const int group = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / 128, 0) - 1;  // the same in a warp, and known to be
  if (group < 0) {
    keep_registers<24>();
    if (threadIdx.x >= 32) return;
    Copier<Traits> copier(args, s);
    for_each_run(a.p, begin, end, [&](const RowRun& run) { copier.run(run); });
  } else {
    take_registers<240>();
    GroupScorer<Traits> scorer(a, s, group);
    for_each_run(a.p, begin, end, [&](const RowRun& run) { scorer.run(run); });
  }
#endif
}

struct Entry {
  void (*kernel)(WgmmaArgs);
  int32_t threads, shared_bytes;
};

template <typename Traits>
Entry entry() {
  return {&score<Traits>, Traits::kThreads, static_cast<int32_t>(sizeof(WgmmaShared<Traits>))};
}

Entry find_kernel(IndexPrecision precision, int32_t padded_heads) {
  using B = __nv_bfloat16;
  using E = __nv_fp8_e4m3;
  const bool bf16 = precision == IndexPrecision::bf16;
  switch (padded_heads) {
    case 16:
      return bf16 ? entry<Traits<B, 16>>() : entry<Traits<E, 16>>();
    case 32:
      return bf16 ? entry<Traits<B, 32>>() : entry<Traits<E, 32>>();
    case 64:
      return bf16 ? entry<Traits<B, 64>>() : entry<Traits<E, 64>>();
    default:
      FOVEA_CHECK(padded_heads == 128);
      return bf16 ? entry<Traits<B, 128>>() : entry<Traits<E, 128>>();
  }
}

}  // namespace

cudaError_t prepare_wgmma() {
  for (IndexPrecision precision : {IndexPrecision::bf16, IndexPrecision::fp8}) {
    for (int32_t heads : {16, 32, 64, 128}) {
      const Entry e = find_kernel(precision, heads);
      const cudaError_t error = cudaFuncSetAttribute(e.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, e.shared_bytes);
      if (error != cudaSuccess) return error;
    }
  }
  return cudaSuccess;
}

void score_wgmma(const ScoreArgs& a, const Way& way, EncodeTensorMap encode, cudaStream_t stream) {
  const IndexKeysView& keys = a.p.keys;
  KvView view;
  view.dtype = keys.precision == IndexPrecision::bf16 ? DType::bf16 : DType::fp8_e4m3;
  view.block_size = keys.block_size, view.kv_heads = 1, view.head_dim = keys.dim;
  view.block_stride = view.head_stride = int64_t{keys.block_size} * keys.dim;
  FOVEA_CHECK(reinterpret_cast<uintptr_t>(keys.k) % 16 == 0 && reinterpret_cast<uintptr_t>(keys.scale) % 16 == 0);
  const WgmmaArgs args{a, way.box_keys, make_tensor_map(encode, view, keys.k, way.box_keys)};
  const Entry e = find_kernel(keys.precision, way.padded_heads);
  const dim3 grid(static_cast<unsigned>(a.pass.groups), static_cast<unsigned>(a.pass.splits));
  e.kernel<<<grid, dim3(e.threads), e.shared_bytes, stream>>>(args);
  check_launch("index scores by tensor cores");
}

}  // namespace fovea::cuda::dsa
