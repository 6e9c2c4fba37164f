// Prefill attention for sm_90a: TMA copies, wgmma products. A thread block stays and takes one job after another. Of one of its
// warpgroups a warp copies keys, one copies values, and one finds the next job beside the last tiles of the one before; each other
// warpgroup attends 64 lanes. A warpgroup's softmax overlaps its own product with the values of the tile before (kHoldsWait), and the
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
  static constexpr int kCopyRegisters = kGroups == 3 ? 32 : 40, kAttendRegisters = kGroups == 3 ? 160 : 232;
};

// A job and what its lanes see.
template <typename Traits>
struct FoundJob {
  LaneViews<Traits::kLanes> views;
  Job job;             // of no lanes: there are no more
  int32_t first, end;  // tiles of its keys
};

template <typename Traits>
struct WgmmaShared {
  alignas(1024) uint8_t k[Traits::kStages][Traits::kPanels][Traits::kPanelBytes];
  alignas(1024) uint8_t v[Traits::kStages][Traits::kPanels][Traits::kPanelBytes];
  alignas(1024) uint8_t q[Traits::kPanels][Traits::kLanes * 128];
  FoundJob<Traits> found[2];
  // By stage: the tile has come; all warpgroups are done with it.
  alignas(8) uint64_t k_full[Traits::kStages], v_full[Traits::kStages];
  uint64_t k_empty[Traits::kStages], v_empty[Traits::kStages];
  uint64_t v_edge;                     // values have come of which some are to be cleared first
  uint64_t job_full[2], job_empty[2];  // by `found`: it is there; all threads are done with it
  uint64_t ending;                     // keys of a job are copied but for the last ones
};

inline constexpr int kQueryBarrier = 1;  // and the next: of each warpgroup that attends

// Number `i` of what takes turns in stages: its stage, and the parity of its turn there.
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
  // before: how many tiles the jobs before had.
  __device__ TileCopier(const PrefillArgs& args, WgmmaShared<Traits>& shared, const FoundJob<Traits>& found, uint32_t before)
      : a(args),
        s(shared),
        job_(found.job),
        first_(found.first),
        end_(found.end),
        turns_(before - found.first),
        lane_(threadIdx.x % 32),
        panel_(lane_ % Traits::kPanels),
        first_key_(lane_ / Traits::kPanels * args.box_keys) {}

  __device__ void copy_keys() {
    const int32_t late = max(end_ - kLastTiles, first_);
    if (lane_ == 0 && late == end_) barrier_arrive(s.ending);
    each_tile([&](int32_t tile, Turn turn, Place from) {
      if (lane_ == 0 && tile == late) barrier_arrive(s.ending);
      barrier_wait(s.k_empty[turn.stage], turn.parity ^ 1);
      copy(a.k_map, tile, s.k[turn.stage][panel_], from, s.k_full[turn.stage]);
    });
  }

  // edges: how many tiles have had values to be cleared.
  __device__ void copy_values(uint32_t& edges) {
    each_tile([&](int32_t tile, Turn turn, Place from) {
      barrier_wait(s.v_empty[turn.stage], turn.parity ^ 1);
      const bool whole = job_.span.begin <= tile * kKeys && (tile + 1) * kKeys <= job_.span.end;
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

  // The next job is taken and found while these are worked on, no earlier: another thread block may be free before.
  static constexpr int kLastTiles = 4;

  struct Place {
    int32_t slot, token;
  };

  template <typename Visit>
  __device__ __forceinline__ void each_tile(Visit visit) {
    read_unit(first_);
    read_place(first_);
    read_unit(first_ + 1);
    for (int32_t tile = first_; tile < end_; ++tile) {
      const Place place = place_;
      read_place(tile + 1);
      read_unit(tile + 2);
      visit(tile, Turn(turns_ + tile), place);
    }
  }

  __device__ bool copies(int32_t tile) const {  // some lane sees a key of this thread's box
    const int32_t key = tile * kKeys + first_key_;
    return first_key_ < kKeys && key < job_.span.end && key + a.box_keys > job_.span.begin;
  }

  __device__ void read_unit(int32_t tile) {
    const KeyList& keys = job_.keys;
    if (keys.units != nullptr && copies(tile)) unit_ = __ldg(&keys.units[(tile * kKeys + first_key_) / keys.tokens]);
  }
  __device__ void read_place(int32_t tile) {
    if (!copies(tile)) return;
    const KeyList& keys = job_.keys;
    const int32_t key = tile * kKeys + first_key_;
    const int32_t pos = keys.units == nullptr ? keys.first + key : unit_ * keys.tokens + key % keys.tokens;
    place_ = {__ldg(&job_.slots[pos >> a.block_shift]), pos & (a.p.kv.block_size - 1)};
  }

  __device__ void copy(const CUtensorMap& map, int32_t tile, uint8_t* to, Place from, uint64_t& barrier) const {
    const bool mine = copies(tile);
    const int boxes = __popc(__ballot_sync(0xffffffffu, mine));
    if (lane_ == 0) barrier_arrive_expecting(barrier, boxes * a.box_keys * 128);
    __syncwarp();
    if (mine) copy_box(to + first_key_ * 128, map, panel_ * 64, from.token, job_.kv_head, from.slot, barrier);
  }

  // Values that no lane sees are multiplied with weights of zero: they must be finite.
  __device__ void clear_unseen(int32_t tile, uint8_t (&v)[Traits::kPanels][Traits::kPanelBytes]) const {
    for (int i = lane_; i < kKeys * 8; i += 32) {
      if (job_.span.holds(tile * kKeys + i / 8)) continue;
      for (int panel = 0; panel < Traits::kPanels; ++panel) {
        *reinterpret_cast<uint4*>(v[panel] + i * 16) = make_uint4(0, 0, 0, 0);
      }
    }
    async_proxy_fence();
    __syncwarp();
  }

  const PrefillArgs& a;
  WgmmaShared<Traits>& s;
  const Job& job_;
  const int32_t first_, end_;
  const uint32_t turns_;  // of tile 0
  const int lane_, panel_, first_key_;
  int32_t unit_ = 0;
  Place place_ = {0, 0};
};

// ---- The attending warpgroups ----------------------------------------------------------------------------------------------

// Rounds the warpgroup's 64 rows of q to T; empty lanes and padding dims are zero. Quarter: four elements of q as they lie. All are
// asked for before the first is looked at.
template <typename Traits, typename Quarter>
__device__ __forceinline__ void load_group_queries(const PrefillArgs& a, const Job& job, int group, WgmmaShared<Traits>& s) {
  using T = typename Traits::T;
  constexpr int kChunks = Traits::kHeadDim / 8, kStep = 128 / kChunks, kEach = 64 / kStep;
  const int32_t dim = a.p.kv.head_dim, chunk = threadIdx.x % kChunks, first = group * 64 + threadIdx.x % 128 / kChunks;
  const auto* q = static_cast<const Quarter*>(a.p.q);
  Quarter x[kEach][2];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int32_t lane = first + i * kStep;
    x[i][0] = x[i][1] = Quarter{};
    if (lane >= job.lanes || chunk * 8 >= dim) continue;
    const int64_t from = job.row_head(lane, heads_per_row(a.p)) * (dim / 4) + chunk * 2;
    x[i][0] = __ldg(q + from);
    x[i][1] = __ldg(q + from + 1);
  }
  named_barrier_wait(kQueryBarrier + group, 128);  // those of the job before have been read
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int32_t lane = first + i * kStep;
    const float4 y = widen_4(x[i][0], a.p.dtype), z = widen_4(x[i][1], a.p.dtype);
    *reinterpret_cast<uint4*>(s.q[chunk / 8] + lane * 128 + ((chunk % 8 ^ lane % 8) << 4)) =
        make_uint4(pack2<T>(y.x, y.y), pack2<T>(y.z, y.w), pack2<T>(z.x, z.y), pack2<T>(z.z, z.w));
  }
  async_proxy_fence();
  named_barrier_wait(kQueryBarrier + group, 128);
}

template <typename Traits>
class Attender {
 public:
  // before: how many tiles the jobs before had.
  __device__ Attender(const PrefillArgs& args, WgmmaShared<Traits>& shared, const FoundJob<Traits>& found, uint32_t before,
                      int group)
      : a(args),
        s(shared),
        job_(found),
        turns_(before - found.first),
        group_(group),
        lane_(group * 64 + threadIdx.x % 128 / 32 * 16 + pair_row()),
        scale_(args.p, found.job.kv_head),
        group_view_(found.views, found.job.lanes, group * 64, 64),
        warp_view_(found.views, found.job.lanes, group * 64 + threadIdx.x % 128 / 32 * 16, 16) {}

  __device__ __forceinline__ void run() {
    if (a.p.dtype == DType::f32) {
      load_group_queries<Traits, float4>(a, job_.job, group_, s);
    } else {
      load_group_queries<Traits, uint2>(a, job_.job, group_, s);
    }
    const int32_t first = job_.first, end = job_.end;
    // Tiles of which this warpgroup sees anything.
    const int32_t own_first = max(first, group_view_.some_lo / kKeys);
    const int32_t own_end = min(end, (group_view_.some_hi + kKeys - 1) / kKeys);
    const bool any = group_view_.some_lo < group_view_.some_hi && own_first < own_end;

    pass(first, any ? own_first : end);
    RowSoftmax rows[2];
    float out[kDimTiles][4] = {};
    if (any) {
      attend(own_first, own_end, rows, out);
      pass(own_end, end);
    }
    store_rows(a, job_.job, scale_, lane_, rows, out);
  }

 private:
  using Turn = TurnOf<Traits::kStages>;
  static constexpr int kKeys = Traits::kKeys;
  static constexpr int kDimTiles = Traits::kHeadDim / 8;
  static constexpr int kSteps = Traits::kHeadDim / 16;  // of a product with keys

  __device__ Turn turn_of(int32_t tile) const { return Turn(turns_ + tile); }

  // Tiles of which this warpgroup sees nothing.
  __device__ void pass(int32_t begin, int32_t end) {
    for (int32_t tile = begin; tile < end; ++tile) {
      const Turn turn = turn_of(tile);
      barrier_wait(s.k_full[turn.stage], turn.parity);
      leave(s.k_empty[turn.stage]);
      barrier_wait(s.v_full[turn.stage], turn.parity);
      leave(s.v_empty[turn.stage]);
    }
  }

  __device__ __forceinline__ void attend(int32_t begin, int32_t end, RowSoftmax (&rows)[2], float (&out)[kDimTiles][4]) {
    float scores[kKeys / 8][4], correction[2];
    uint32_t weights[kKeys / 16][4];
    if constexpr (Traits::kQueriesInRegisters) take_queries();
    start_scores(turn_of(begin), scores);
    wgmma_wait<0>();
    pin(scores);
    leave(s.k_empty[turn_of(begin).stage]);
    weigh(begin, scores, rows, correction);
    pack(scores, weights);
    for (int32_t tile = begin + 1; tile < end; ++tile) {
      const Turn turn = turn_of(tile), before = turn_of(tile - 1);
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
    const Turn last = turn_of(end - 1);
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
    if (key < warp_view_.all_lo || key + kKeys > warp_view_.all_hi) mask_scores(job_.views, lane_, key, scores);
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
  const FoundJob<Traits>& job_;
  const uint32_t turns_;  // of tile 0
  const int group_, lane_;
  uint32_t queries_[kSteps][4];  // of kQueriesInRegisters alone
  const ScoreScale scale_;
  const SharedView group_view_, warp_view_;
};

// ---- Jobs --------------------------------------------------------------------------------------------------------------------

// Jobs of a part of the heads follow each other, since they share keys. Of these the latest rows, which read most, come first.
__device__ inline bool find_job_number(const PrefillArgs& a, int32_t number, Job& job) {
  const int32_t tiles = max(*a.tile_count, 1), heads = number / tiles;
  return heads < a.p.kv.kv_heads * a.tiles_per_group && find_job(a, number % tiles, heads, job);
}

// Asks for the queries to come to the L2 cache.
__device__ inline void prefetch_queries(const PrefillArgs& a, const Job& job) {
  const int32_t row_bytes = a.p.kv.head_dim * static_cast<int32_t>(dtype_bytes(a.p.dtype));
  for (int32_t lane = threadIdx.x % 32; lane < job.lanes; lane += 32) {
    const char* row = static_cast<const char*>(a.p.q) + job.row_head(lane, heads_per_row(a.p)) * row_bytes;
    for (int32_t byte = 0; byte < row_bytes; byte += 128) prefetch_line(row + byte);
  }
}

// One warp: each job of the thread block, beside the last tiles of the one before. The first is the one of the thread block's number.
template <typename Traits>
__device__ void find_jobs(const PrefillArgs& a, WgmmaShared<Traits>& s) {
  const int thread = threadIdx.x % 32;
  int32_t number = blockIdx.x;
  for (uint32_t n = 0;; ++n) {
    const TurnOf<2> turn(n);
    FoundJob<Traits>& to = s.found[turn.stage];
    barrier_wait(s.job_empty[turn.stage], turn.parity ^ 1);
    Job job{};
    const bool found = find_job_number(a, number, job);
    if (found) fill_lane_views(a, job, to.views, thread, 32);
    if (thread == 0) {
      to.job = job;
      to.first = job.span.begin / Traits::kKeys;
      to.end = job.span.end > job.span.begin ? (job.span.end + Traits::kKeys - 1) / Traits::kKeys : to.first;
    }
    barrier_arrive(s.job_full[turn.stage]);
    if (!found) return;
    if (n > 0) prefetch_queries(a, job);
    barrier_wait(s.ending, n & 1);
    if (thread == 0) number = static_cast<int32_t>(gridDim.x) + atomicAdd(a.taken, 1);
    number = __shfl_sync(0xffffffffu, number, 0);
  }
}

// Calls visit(found, before) for each job of the thread block, with how many tiles the jobs before had. Whole warps call it.
template <typename Traits, typename Visit>
__device__ __forceinline__ void each_job(WgmmaShared<Traits>& s, Visit visit) {
  uint32_t before = 0;
  for (uint32_t n = 0;; ++n) {
    const TurnOf<2> turn(n);
    barrier_wait(s.job_full[turn.stage], turn.parity);
    const FoundJob<Traits>& found = s.found[turn.stage];
    if (found.job.lanes == 0) return;
    visit(found, before);
    before += found.end - found.first;
    barrier_arrive(s.job_empty[turn.stage]);
  }
}

template <typename Traits>
__device__ void init_barriers(WgmmaShared<Traits>& s) {
  for (int stage = 0; stage < Traits::kStages; ++stage) {
    barrier_init(s.k_full[stage], 1);
    barrier_init(s.v_full[stage], 1);
    barrier_init(s.k_empty[stage], 4 * Traits::kGroups);
    barrier_init(s.v_empty[stage], 4 * Traits::kGroups);
  }
  barrier_init(s.v_edge, 1);
  barrier_init(s.ending, 1);
  for (int i = 0; i < 2; ++i) {
    barrier_init(s.job_full[i], 32);
    barrier_init(s.job_empty[i], 128 * Traits::kGroups + 64);
  }
  barrier_init_fence();
}

template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1) prefill_wgmma(const __grid_constant__ PrefillArgs a) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Found = FoundJob<Traits>;
  auto& s = *reinterpret_cast<WgmmaShared<Traits>*>(shared_memory());
  if (threadIdx.x == 0) init_barriers(s);
  __syncthreads();

  const int group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0) - 1;  // the same in a warp, and known to be
  if (group < 0) {
    if constexpr (Traits::kMovesRegisters) keep_registers<Traits::kCopyRegisters>();
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
    if (warp == 0) {
      each_job(s, [&](const Found& job, uint32_t before) { TileCopier<Traits>(a, s, job, before).copy_keys(); });
    } else if (warp == 1) {
      uint32_t edges = 0;
      each_job(s, [&](const Found& job, uint32_t before) { TileCopier<Traits>(a, s, job, before).copy_values(edges); });
    } else if (warp == 2) {
      find_jobs(a, s);
    }
  } else {
    if constexpr (Traits::kMovesRegisters) take_registers<Traits::kAttendRegisters>();
    each_job(s, [&](const Found& job, uint32_t before) { Attender<Traits>(a, s, job, before, group).run(); });
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
