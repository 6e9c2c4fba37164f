// Prefill attention on tensor cores through mma.sync (sm_80 up). One block: a tile of lanes over all keys they see, 64 at
// a time; K and V of the next tile are copied while this one is worked on.
#pragma once

#include <span>

#include "kernels/cuda/prefill/kernels.h"
#include "kernels/cuda/prefill/key_feed.cuh"
#include "kernels/cuda/prefill/mma_tiles.cuh"
#include "kernels/cuda/prefill/row_pairs.cuh"

namespace fovea::cuda::prefill {

template <typename Traits>
struct MmaShared {
  static constexpr int kTileBytes = Traits::kKeys * TileLayout<Traits::kHeadDim>::kRowBytes;
  alignas(1024) uint8_t k[2][kTileBytes];
  alignas(1024) uint8_t v[2][kTileBytes];
  alignas(1024) uint8_t q[Traits::kLanes * TileLayout<Traits::kHeadDim>::kRowBytes];
  KeyRing<Traits::kKeys> ring;
  LaneViews<Traits::kLanes> views;
  Job job;
};

// Rounds the job's rows of q to T; empty lanes and padding dims are zero.
template <typename Traits>
__device__ void load_queries(const PrefillArgs& a, const Job& job, uint8_t* q) {
  using Layout = TileLayout<Traits::kHeadDim>;
  const int32_t dim = a.p.kv.head_dim;
  for (int32_t i = threadIdx.x; i < Traits::kLanes * Layout::kChunks; i += Traits::kThreads) {
    const int32_t lane = i / Layout::kChunks, chunk = i % Layout::kChunks;
    float4 x = make_float4(0, 0, 0, 0), y = x;
    if (lane < job.lanes && chunk * 8 < dim) {
      const int64_t from = job.row_head(lane, heads_per_row(a.p)) * dim + chunk * 8;
      x = read_activations(a.p.q, a.p.dtype, from);
      y = read_activations(a.p.q, a.p.dtype, from + 4);
    }
    using T = typename Traits::T;
    *reinterpret_cast<uint4*>(q + Layout::at(lane, chunk)) =
        make_uint4(pack2<T>(x.x, x.y), pack2<T>(x.z, x.w), pack2<T>(y.x, y.y), pack2<T>(y.z, y.w));
  }
}

// Starts the copy of tile `tile`; keys that no lane may read become zeros.
template <typename Traits>
__device__ __forceinline__ void copy_tile(const PrefillArgs& a, int32_t tile, MmaShared<Traits>& s) {
  using Layout = TileLayout<Traits::kHeadDim>;
  using T = typename Traits::T;
  const int stage = tile % 2;
  const KvView& kv = a.p.kv;
#pragma unroll
  for (int i = 0; i < Traits::kKeys * Layout::kChunks / Traits::kThreads; ++i) {
    const int at = i * Traits::kThreads + threadIdx.x;
    const int key = at / Layout::kChunks, chunk = at % Layout::kChunks;
    const int64_t row = s.ring.row[tile % s.ring.kTiles][key];
    const bool there = row >= 0 && chunk * 8 < kv.head_dim;
    uint8_t* const k_at = s.k[stage] + Layout::at(key, chunk);
    uint8_t* const v_at = s.v[stage] + Layout::at(key, chunk);
    if constexpr (!Traits::kConverted) {
      const int64_t from = there ? row + chunk * 8 : 0;
      copy_async_16(shared_address(k_at), static_cast<const T*>(kv.k) + from, there);
      copy_async_16(shared_address(v_at), static_cast<const T*>(kv.v) + from, there);
    } else {
      const float4 zero = make_float4(0, 0, 0, 0);
      const int32_t pos = s.ring.pos[tile % s.ring.kTiles][key];
      const float4 k0 = there ? read_key_4(kv, row, chunk * 8) : zero;
      const float4 k1 = there ? read_key_4(kv, row, chunk * 8 + 4) : zero;
      const float4 v0 = there ? read_value_4(kv, row, pos, chunk * 8) : zero;
      const float4 v1 = there ? read_value_4(kv, row, pos, chunk * 8 + 4) : zero;
      *reinterpret_cast<uint4*>(k_at) =
          make_uint4(pack2<T>(k0.x, k0.y), pack2<T>(k0.z, k0.w), pack2<T>(k1.x, k1.y), pack2<T>(k1.z, k1.w));
      *reinterpret_cast<uint4*>(v_at) =
          make_uint4(pack2<T>(v0.x, v0.y), pack2<T>(v0.z, v0.w), pack2<T>(v1.x, v1.y), pack2<T>(v1.z, v1.w));
    }
  }
  copy_async_commit();
}

// Scores -> weights, 16 keys at a time, and their values added: the exponentials of the next keys overlap the products.
template <typename Traits>
__device__ __forceinline__ void add_values(const ScoreScale& scale, uint32_t v,
                                           float (&scores)[Traits::kRowTiles][Traits::kKeys / 8][4],
                                           RowSoftmax (&rows)[Traits::kRowTiles][2],
                                           float (&out)[Traits::kRowTiles][Traits::kHeadDim / 8][4]) {
#pragma unroll
  for (int step = 0; step < Traits::kKeys / 16; ++step) {
    uint32_t weights[Traits::kRowTiles][4];
#pragma unroll
    for (int t = 0; t < Traits::kRowTiles; ++t) {
      const Offsets offsets(scale, rows[t]);
      exponentiate(scale, offsets, rows[t], scores[t][2 * step]);
      exponentiate(scale, offsets, rows[t], scores[t][2 * step + 1]);
      pack_weights<typename Traits::T>(scores[t][2 * step], scores[t][2 * step + 1], weights[t]);
    }
    multiply_values<Traits>(weights, v + step * 16 * TileLayout<Traits::kHeadDim>::kRowBytes, out);
  }
}

// One tile of keys for one warp.
template <typename Traits>
__device__ __forceinline__ void attend_tile(const ScoreScale& scale, const SharedView& view, const MmaShared<Traits>& s,
                                            int32_t tile, RowSoftmax (&rows)[Traits::kRowTiles][2],
                                            float (&out)[Traits::kRowTiles][Traits::kHeadDim / 8][4]) {
  const int32_t key = tile * Traits::kKeys;
  if (key >= view.some_hi || key + Traits::kKeys <= view.some_lo) return;
  const int warp_lane = threadIdx.x / 32 * 16 * Traits::kRowTiles;
  const bool masked = key < view.all_lo || key + Traits::kKeys > view.all_hi;

  float scores[Traits::kRowTiles][Traits::kKeys / 8][4];
  multiply_keys<Traits>(shared_address(s.q) + warp_lane * TileLayout<Traits::kHeadDim>::kRowBytes, shared_address(s.k[tile % 2]),
                        scores);
  float correction[Traits::kRowTiles][2];
  bool changed = false;
#pragma unroll
  for (int t = 0; t < Traits::kRowTiles; ++t) {
    const int32_t lane = warp_lane + t * 16 + pair_row();
    if (!scale.plain) shape_scores(scale, s.views, lane, s.ring.pos[tile % s.ring.kTiles], scores[t]);
    if (masked) mask_scores(s.views, lane, key, scores[t]);
    changed |= follow_scores(scale, scores[t], rows[t], correction[t]);
  }
  if (__any_sync(0xffffffffu, changed)) {
#pragma unroll
    for (int t = 0; t < Traits::kRowTiles; ++t) rescale(correction[t], out[t]);
  }
  add_values<Traits>(scale, shared_address(s.v[tile % 2]), scores, rows, out);
}

template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kBlocksPerSm) prefill_mma(const __grid_constant__ PrefillArgs a) {
  constexpr int kKeys = Traits::kKeys;
  constexpr int kWarpLanes = 16 * Traits::kRowTiles;
  auto& s = *reinterpret_cast<MmaShared<Traits>*>(shared_memory());
  Job job;
  if (!find_job(a, blockIdx.x, blockIdx.y, job)) return;
  if (threadIdx.x == 0) s.job = job;
  const ScoreScale scale(a.p, job.kv_head);
  const int32_t first = job.span.begin / kKeys;
  const int32_t end = job.span.end > job.span.begin ? (job.span.end + kKeys - 1) / kKeys : first;

  KeyFeed<kKeys> feed;
  feed.start(a, job, first, s.ring);
  fill_lane_views(a, job, s.views, threadIdx.x, blockDim.x);
  __syncthreads();
  if (first < end) copy_tile<Traits>(a, first, s);
  load_queries<Traits>(a, job, s.q);

  const int warp_lane = threadIdx.x / 32 * kWarpLanes;
  const SharedView view(s.views, job.lanes, warp_lane, kWarpLanes);
  RowSoftmax rows[Traits::kRowTiles][2];
  float out[Traits::kRowTiles][Traits::kHeadDim / 8][4] = {};
  for (int32_t tile = first; tile < end; ++tile) {
    copy_async_wait<0>();
    __syncthreads();  // tile is there for all, and no one reads tile - 1 any more
    if (tile + 1 < end) copy_tile<Traits>(a, tile + 1, s);
    feed.feed(a, s.job, tile, s.ring);
    attend_tile<Traits>(scale, view, s, tile, rows, out);
  }
#pragma unroll
  for (int t = 0; t < Traits::kRowTiles; ++t) {
    store_rows(a, s.job, scale, warp_lane + t * 16 + pair_row(), rows[t], out[t]);
  }
}

template <typename Traits>
PrefillEntry mma_entry(PrefillPath path, DType math) {
  return {path,
          math,
          Traits::kHeadDim,
          Traits::kLanes,
          {reinterpret_cast<const void*>(&prefill_mma<Traits>), Traits::kThreads, static_cast<int32_t>(sizeof(MmaShared<Traits>))}};
}

}  // namespace fovea::cuda::prefill
