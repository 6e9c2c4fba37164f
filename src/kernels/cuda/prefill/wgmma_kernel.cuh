// Prefill attention for sm_90a: TMA copies, wgmma products. One warpgroup of a block copies keys and values; each other
// attends 64 lanes. A warpgroup's softmax overlaps its own product with the values of the tile before (kHoldsWait), and the
// other warpgroups' products; making them take turns at starting products is slower (H100: 543 against 570 TFLOP/s).
#pragma once

#include <span>

#include "kernels/cuda/prefill/hopper.cuh"
#include "kernels/cuda/prefill/kernels.h"
#include "kernels/cuda/prefill/row_pairs.cuh"

namespace fovea::cuda::prefill {

template <typename Element, int kDim, int kGroupCount>
struct WgmmaTraits {
  using T = Element;
  static constexpr int kHeadDim = kDim;
  static constexpr int kGroups = kGroupCount;  // warpgroups that attend
  static constexpr int kLanes = 64 * kGroups;
  static constexpr int kThreads = 128 * (kGroups + 1);
  static constexpr int kKeys = 128;              // of a tile
  static constexpr int kPanels = kHeadDim / 64;  // rows of 64 dims, 128 bytes: what TMA and wgmma permute
  static constexpr int kPanelBytes = kKeys * 128;
  static constexpr int kStages = 2;  // tiles of K, and of V, in shared memory
  // Where they fit. Read from shared memory for every tile of keys, they cost 4 % of the rate, which power bounds.
  static constexpr bool kQueriesInRegisters = kHeadDim == 128;
  // Whether a softmax stays beside the warpgroup's own product (stay_before_wait). With head_dim 128 the products of the other
  // warpgroup are enough: 568 TFLOP/s with it, 599 without (H200).
  static constexpr bool kHoldsWait = kHeadDim == 64;
  // What a warpgroup that attends takes over of the copying one's registers: 64K / 384 or 512 = 168 or 128 at the start.
  static constexpr bool kMovesRegisters = kGroups > 1;
  static constexpr int kCopyRegisters = kGroups == 3 ? 32 : 24, kAttendRegisters = kGroups == 3 ? 160 : 240;
};

template <typename Traits>
struct WgmmaShared {
  alignas(1024) uint8_t k[Traits::kStages][Traits::kPanels][Traits::kPanelBytes];
  alignas(1024) uint8_t v[Traits::kStages][Traits::kPanels][Traits::kPanelBytes];
  alignas(1024) uint8_t q[Traits::kPanels][Traits::kLanes * 128];
  // By stage: the tile has come; all warpgroups are done with it.
  alignas(8) uint64_t k_full[Traits::kStages], v_full[Traits::kStages];
  uint64_t k_empty[Traits::kStages], v_empty[Traits::kStages];
  uint64_t v_edge;  // values have come of which some are to be cleared first
  LaneViews<Traits::kLanes> views;
  Job job;
};

// Tile number `i` of a job: its stage, and the parity of its turn there.
template <int kStages>
struct TurnOf {
  int stage;
  uint32_t parity;
  __device__ explicit TurnOf(uint32_t i) : stage(i % kStages), parity(i / kStages & 1) {}
};

// ---- The copying warps -----------------------------------------------------------------------------------------------------

// Each lane copies one box of every tile: box_keys keys that lie together in a page, 64 dims of them. One warp copies K and
// another V: the copies of a warp's lanes start one after the other. Unit and slot of the tiles to come are read ahead, as
// KeyFeed does.
template <typename Traits>
class TileCopier {
 public:
  __device__ TileCopier(const PrefillArgs& args, WgmmaShared<Traits>& shared)
      : a(args),
        s(shared),
        lane_(threadIdx.x % 32),
        panel_(lane_ % Traits::kPanels),
        first_key_(lane_ / Traits::kPanels * args.box_keys) {}

  __device__ void copy_keys(int32_t first, int32_t end) {
    each_tile(first, end, [&](int32_t tile, Turn turn, Place from) {
      barrier_wait(s.k_empty[turn.stage], turn.parity ^ 1);
      copy(a.k_map, tile, s.k[turn.stage][panel_], from, s.k_full[turn.stage]);
    });
  }

  __device__ void copy_values(int32_t first, int32_t end) {
    uint32_t edges = 0;
    each_tile(first, end, [&](int32_t tile, Turn turn, Place from) {
      barrier_wait(s.v_empty[turn.stage], turn.parity ^ 1);
      const bool whole = s.job.span.begin <= tile * kKeys && (tile + 1) * kKeys <= s.job.span.end;
      copy(a.v_map, tile, s.v[turn.stage][panel_], from, whole ? s.v_full[turn.stage] : s.v_edge);
      if (whole) return;
      barrier_wait(s.v_edge, edges++ & 1);
      clear_unseen(tile, s.v[turn.stage]);
      if (lane_ == 0) barrier_arrive(s.v_full[turn.stage]);
    });
  }

 private:
  using Turn = TurnOf<Traits::kStages>;
  static constexpr int kKeys = Traits::kKeys;

  struct Place {
    int32_t slot, token;
  };

  template <typename Visit>
  __device__ __forceinline__ void each_tile(int32_t first, int32_t end, Visit visit) {
    read_unit(first);
    read_place(first);
    read_unit(first + 1);
    for (int32_t tile = first; tile < end; ++tile) {
      const Place place = place_;
      read_place(tile + 1);
      read_unit(tile + 2);
      visit(tile, Turn(tile - first), place);
    }
  }

  __device__ bool copies(int32_t tile) const {  // some lane sees a key of this thread's box
    const int32_t key = tile * kKeys + first_key_;
    return first_key_ < kKeys && key < s.job.span.end && key + a.box_keys > s.job.span.begin;
  }

  __device__ void read_unit(int32_t tile) {
    const KeyList& keys = s.job.keys;
    if (keys.units != nullptr && copies(tile)) unit_ = __ldg(&keys.units[(tile * kKeys + first_key_) / keys.tokens]);
  }
  __device__ void read_place(int32_t tile) {
    if (!copies(tile)) return;
    const KeyList& keys = s.job.keys;
    const int32_t key = tile * kKeys + first_key_;
    const int32_t pos = keys.units == nullptr ? keys.first + key : unit_ * keys.tokens + key % keys.tokens;
    place_ = {__ldg(&s.job.slots[pos >> a.block_shift]), pos & (a.p.kv.block_size - 1)};
  }

  __device__ void copy(const CUtensorMap& map, int32_t tile, uint8_t* to, Place from, uint64_t& barrier) const {
    const bool mine = copies(tile);
    const int boxes = __popc(__ballot_sync(0xffffffffu, mine));
    if (lane_ == 0) barrier_arrive_expecting(barrier, boxes * a.box_keys * 128);
    __syncwarp();
    if (mine) copy_box(to + first_key_ * 128, map, panel_ * 64, from.token, s.job.kv_head, from.slot, barrier);
  }

  // Values that no lane sees are multiplied with weights of zero: they must be finite.
  __device__ void clear_unseen(int32_t tile, uint8_t (&v)[Traits::kPanels][Traits::kPanelBytes]) const {
    for (int i = lane_; i < kKeys * 8; i += 32) {
      if (s.job.span.holds(tile * kKeys + i / 8)) continue;
      for (int panel = 0; panel < Traits::kPanels; ++panel) {
        *reinterpret_cast<uint4*>(v[panel] + i * 16) = make_uint4(0, 0, 0, 0);
      }
    }
    async_proxy_fence();
    __syncwarp();
  }

  const PrefillArgs& a;
  WgmmaShared<Traits>& s;
  const int lane_, panel_, first_key_;
  int32_t unit_ = 0;
  Place place_ = {0, 0};
};

// ---- The attending warpgroups ----------------------------------------------------------------------------------------------

// Rounds the warpgroup's 64 rows of q to T; empty lanes and padding dims are zero.
template <typename Traits>
__device__ void load_group_queries(const PrefillArgs& a, int group, WgmmaShared<Traits>& s) {
  using T = typename Traits::T;
  constexpr int kChunks = Traits::kHeadDim / 8;
  const int32_t dim = a.p.kv.head_dim;
#pragma unroll 4
  for (int32_t i = threadIdx.x % 128; i < 64 * kChunks; i += 128) {
    const int32_t lane = group * 64 + i / kChunks, chunk = i % kChunks;
    float4 x = make_float4(0, 0, 0, 0), y = x;
    if (lane < s.job.lanes && chunk * 8 < dim) {
      const int64_t from = s.job.row_head(lane, heads_per_row(a.p)) * dim + chunk * 8;
      x = read_activations(a.p.q, a.p.dtype, from);
      y = read_activations(a.p.q, a.p.dtype, from + 4);
    }
    *reinterpret_cast<uint4*>(s.q[chunk / 8] + lane * 128 + ((chunk % 8 ^ lane % 8) << 4)) =
        make_uint4(pack2<T>(x.x, x.y), pack2<T>(x.z, x.w), pack2<T>(y.x, y.y), pack2<T>(y.z, y.w));
  }
}

template <typename Traits>
class Attender {
 public:
  __device__ Attender(const PrefillArgs& args, WgmmaShared<Traits>& shared, int group)
      : a(args),
        s(shared),
        group_(group),
        lane_(group * 64 + threadIdx.x % 128 / 32 * 16 + pair_row()),
        scale_(args.p, shared.job.kv_head),
        group_view_(shared.views, shared.job.lanes, group * 64, 64),
        warp_view_(shared.views, shared.job.lanes, group * 64 + threadIdx.x % 128 / 32 * 16, 16) {}

  __device__ __forceinline__ void run(int32_t first, int32_t end) {
    load_group_queries<Traits>(a, group_, s);
    async_proxy_fence();
    named_barrier_wait(kQueryBarrier + group_, 128);
    // Tiles of which this warpgroup sees anything.
    const int32_t own_first = max(first, group_view_.some_lo / kKeys);
    const int32_t own_end = min(end, (group_view_.some_hi + kKeys - 1) / kKeys);
    const bool any = group_view_.some_lo < group_view_.some_hi && own_first < own_end;

    pass(first, first, any ? own_first : end);
    RowSoftmax rows[2];
    float out[kDimTiles][4] = {};
    if (any) {
      attend(first, own_first, own_end, rows, out);
      pass(first, own_end, end);
    }
    store_rows(a, s.job, scale_, lane_, rows, out);
  }

 private:
  using Turn = TurnOf<Traits::kStages>;
  static constexpr int kKeys = Traits::kKeys;
  static constexpr int kDimTiles = Traits::kHeadDim / 8;
  static constexpr int kSteps = Traits::kHeadDim / 16;  // of a product with keys
  static constexpr int kQueryBarrier = 1;               // and the next: of each warpgroup

  // Tiles of which this warpgroup sees nothing.
  __device__ void pass(int32_t first, int32_t begin, int32_t end) {
    for (int32_t tile = begin; tile < end; ++tile) {
      const Turn turn(tile - first);
      barrier_wait(s.k_full[turn.stage], turn.parity);
      leave(s.k_empty[turn.stage]);
      barrier_wait(s.v_full[turn.stage], turn.parity);
      leave(s.v_empty[turn.stage]);
    }
  }

  __device__ __forceinline__ void attend(int32_t first, int32_t begin, int32_t end, RowSoftmax (&rows)[2],
                                         float (&out)[kDimTiles][4]) {
    float scores[kKeys / 8][4], correction[2];
    uint32_t weights[kKeys / 16][4];
    if constexpr (Traits::kQueriesInRegisters) take_queries();
    start_scores(Turn(begin - first), scores);
    wgmma_wait<0>();
    pin(scores);
    leave(s.k_empty[Turn(begin - first).stage]);
    weigh(begin, scores, rows, correction);
    pack(scores, weights);
    for (int32_t tile = begin + 1; tile < end; ++tile) {
      const Turn turn(tile - first), before(tile - 1 - first);
      start_scores(turn, scores);
      start_values(before, weights, out);
      wgmma_wait<1>();
      pin(scores);
      leave(s.k_empty[turn.stage]);
      if constexpr (Traits::kHoldsWait) {
        const bool changed = weigh(tile, scores, rows, correction);
        stay_before_wait(rows);
        wgmma_wait<0>();
        pin(out);
        leave(s.v_empty[before.stage]);
        if (__any_sync(0xffffffffu, changed)) rescale(correction, out);
        pack(scores, weights);
      } else {
        wgmma_wait<0>();
        pin(out);
        leave(s.v_empty[before.stage]);
        see(tile, scores);
        weigh_and_pack(scores, rows, weights, out);
      }
    }
    const Turn last(end - 1 - first);
    start_values(last, weights, out);
    wgmma_wait<0>();
    pin(out);
    leave(s.v_empty[last.stage]);
  }

  __device__ __forceinline__ void take_queries() {
    const int lane = group_ * 64 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 16;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int chunk = step % 4 * 2 + threadIdx.x % 32 / 16;
      load_matrices(queries_[step], shared_address(s.q[step / 4]) + lane * 128 + ((chunk ^ lane % 8) << 4));
    }
  }

  __device__ __forceinline__ void start_scores(Turn turn, float (&scores)[kKeys / 8][4]) {
    barrier_wait(s.k_full[turn.stage], turn.parity);
    pin(scores);
    wgmma_begin();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const uint64_t k = matrix_descriptor(shared_address(s.k[turn.stage][step / 4]) + step % 4 * 32);
      if constexpr (Traits::kQueriesInRegisters) {
        wgmma_keys<typename Traits::T>(scores, queries_[step], k, step > 0);
      } else {
        const uint64_t q = matrix_descriptor(shared_address(s.q[step / 4]) + group_ * 64 * 128 + step % 4 * 32);
        wgmma_keys<typename Traits::T>(scores, q, k, step > 0);
      }
    }
    wgmma_commit();
  }

  __device__ __forceinline__ void start_values(Turn turn, const uint32_t (&weights)[kKeys / 16][4], float (&out)[kDimTiles][4]) {
    barrier_wait(s.v_full[turn.stage], turn.parity);
    pin(out);
    wgmma_begin();
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      const uint64_t v = matrix_descriptor(shared_address(s.v[turn.stage][0]) + step * 16 * 128, Traits::kPanelBytes);
      wgmma_values<typename Traits::T>(out, weights[step], v);
    }
    wgmma_commit();
  }

  // Raw scores as the softmax takes them: capped, and -inf where a key is not seen.
  __device__ __forceinline__ void see(int32_t tile, float (&scores)[kKeys / 8][4]) {
    const int32_t key = tile * kKeys;
    if (!scale_.plain) cap_scores(scores);
    if (key < warp_view_.all_lo || key + kKeys > warp_view_.all_hi) mask_scores(s.views, lane_, key, scores);
  }

  // Raw scores -> weights in float32. True if the outputs are to be rescaled.
  __device__ __forceinline__ bool weigh(int32_t tile, float (&scores)[kKeys / 8][4], RowSoftmax (&rows)[2],
                                        float (&correction)[2]) {
    see(tile, scores);
    const bool changed = follow_scores(scale_, scores, rows, correction);
    Offsets offsets(scale_, rows);
    offsets.keep();
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) exponentiate(scale_, offsets, rows, scores[n]);
    return changed;
  }

  // The same for a later tile, without looking for its greatest scores: what exceeds the references shows in the sums, and only
  // then are they looked for. A row's reference depends on its own scores alone.
  __device__ __forceinline__ void weigh_and_pack(const float (&scores)[kKeys / 8][4], RowSoftmax (&rows)[2],
                                                 uint32_t (&weights)[kKeys / 16][4], float (&out)[kDimTiles][4]) {
    for (bool followed = false;; followed = true) {
      RowSoftmax tile[2] = {rows[0].without_sum(), rows[1].without_sum()};
      Offsets offsets(scale_, rows);
      offsets.keep();
#pragma unroll
      for (int step = 0; step < kKeys / 16; ++step) {
        float x[2][4];
#pragma unroll
        for (int n = 0; n < 2; ++n) {
#pragma unroll
          for (int e = 0; e < 4; ++e) x[n][e] = scores[2 * step + n][e];
          exponentiate(scale_, offsets, tile, x[n]);
        }
        pack_weights<typename Traits::T>(x[0], x[1], weights[step]);
      }
      const bool exceeds[2] = {tile[0].exceeds(), tile[1].exceeds()};
      if (followed || !__any_sync(0xffffffffu, exceeds[0] || exceeds[1])) {
        rows[0].add(tile[0].sum);
        rows[1].add(tile[1].sum);
        return;
      }
      float correction[2];
      follow_exceeding(scale_, scores, exceeds, rows, correction);
      rescale(correction, out);
    }
  }

  // Without it ptxas waits for the products with the values first, as soon as they have been started, and nothing runs beside
  // them. It does not move that wait over a branch. The sums need every weight, and are never negative.
  __device__ __forceinline__ static void stay_before_wait(const RowSoftmax (&rows)[2]) {
    if (__any_sync(0xffffffffu, rows[0].sum < 0.0f || rows[1].sum < 0.0f)) asm volatile("nanosleep.u32 20;" ::: "memory");
  }

  __device__ __forceinline__ void cap_scores(float (&scores)[kKeys / 8][4]) {
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) scores[n][e] = scale_.shape(scores[n][e], 0.0f, 0);
    }
  }

  __device__ __forceinline__ static void pack(const float (&scores)[kKeys / 8][4], uint32_t (&weights)[kKeys / 16][4]) {
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      pack_weights<typename Traits::T>(scores[2 * step], scores[2 * step + 1], weights[step]);
    }
  }

  // This warp is done with a stage.
  __device__ __forceinline__ static void leave(uint64_t& empty) {
    if (threadIdx.x % 32 == 0) barrier_arrive(empty);
  }

  const PrefillArgs& a;
  WgmmaShared<Traits>& s;
  const int group_, lane_;
  uint32_t queries_[kSteps][4];  // of kQueriesInRegisters alone
  const ScoreScale scale_;
  const SharedView group_view_, warp_view_;
};

template <typename Traits>
__device__ void init_barriers(WgmmaShared<Traits>& s) {
  for (int stage = 0; stage < Traits::kStages; ++stage) {
    barrier_init(s.k_full[stage], 1);
    barrier_init(s.v_full[stage], 1);
    barrier_init(s.k_empty[stage], 4 * Traits::kGroups);
    barrier_init(s.v_empty[stage], 4 * Traits::kGroups);
  }
  barrier_init(s.v_edge, 1);
  barrier_init_fence();
}

template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1) prefill_wgmma(const __grid_constant__ PrefillArgs a) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  auto& s = *reinterpret_cast<WgmmaShared<Traits>*>(shared_memory());
  Job job;
  if (!find_job(a, job)) return;
  if (threadIdx.x == 0) {
    s.job = job;
    init_barriers(s);
  }
  fill_lane_views(a, job, s.views);
  const int32_t first = job.span.begin / Traits::kKeys;
  const int32_t end = job.span.end > job.span.begin ? (job.span.end + Traits::kKeys - 1) / Traits::kKeys : first;
  __syncthreads();

  const int group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0) - 1;  // the same in a warp, and known to be
  if (group < 0) {
    if constexpr (Traits::kMovesRegisters) keep_registers<Traits::kCopyRegisters>();
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
    if (warp == 0) TileCopier<Traits>(a, s).copy_keys(first, end);
    if (warp == 1) TileCopier<Traits>(a, s).copy_values(first, end);
  } else {
    if constexpr (Traits::kMovesRegisters) take_registers<Traits::kAttendRegisters>();
    Attender<Traits>(a, s, group).run(first, end);
  }
#endif
}

template <typename Traits>
PrefillEntry wgmma_entry(DType math) {
  return {
      PrefillPath::wgmma,
      math,
      Traits::kHeadDim,
      Traits::kLanes,
      {reinterpret_cast<const void*>(&prefill_wgmma<Traits>), Traits::kThreads, static_cast<int32_t>(sizeof(WgmmaShared<Traits>))}};
}

}  // namespace fovea::cuda::prefill
