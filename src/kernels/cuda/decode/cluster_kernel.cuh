// Decode attention over lists of some rows, a cluster of thread blocks a list: bf16, f16 and fp8 KV in layout hnd.
//
// All lists are walked at once, each by as many thread blocks as its share of the multiprocessors, one thread block each. That is
// two teams of four warps: one team alone has too little under way, and a device holds fewer clusters of smaller thread blocks
// than would fill it (an H100 30 clusters of four, 132 multiprocessors), so that the last ones would begin when the others end.
// The teams of a cluster take splits in turn. Each split's result goes to the thread block that merges its head, into shared
// memory: no scratch and no counters, and the hardware runs a cluster as a whole. What it computes is MmaKernel's, bit for bit.
#pragma once

#include "kernels/cuda/decode/split_kernel.cuh"
#include "kernels/cuda/peers.cuh"

namespace fovea::cuda::decode {

template <typename Kv, int kDim>
struct TeamShared {
  using Kernel = MmaKernel<Kv, kDim, 1>;
  WorkList list;
  alignas(16) uint4 q[1][Kernel::kSlices][2][kWarp];
  alignas(16) WarpSums<8, kDim> sums;
  typename Kernel::Ring rings[kWarps];
};

template <typename Kv, int kDim>
struct ClusterShared {
  TeamShared<Kv, kDim> teams[kTeams];
  // Of the heads that this thread block merges, [heads, splits].
  alignas(16) float4 parts[kClusterParts][kDim / 4];
  float2 softmax[kClusterParts];
};

template <typename Kv, int kDim>
struct ClusterKernel : SplitKernel<Kv, kDim, TeamShared<Kv, kDim>> {
  using Base = SplitKernel<Kv, kDim, TeamShared<Kv, kDim>>;
  using Base::a, Base::shared, Base::lane, Base::warp, Base::kStages, Base::kColumns, Base::list, Base::row, Base::hi, Base::keys,
      Base::tiles, Base::places;
  static constexpr int kSplitTiles = SplitRule{}.min_keys / (kWarps * kTileKeys);  // of a warp

  ClusterShared<Kv, kDim>& all;
  const Peers peers;
  const int team = static_cast<int>(threadIdx.x) / kThreads, teams = kTeams * peers.count;
  const int first_split = kTeams * peers.rank + team;
  int32_t splits = 0;

  __device__ ClusterKernel(const Args& args, ClusterShared<Kv, kDim>& s, int team_)
      : Base(args, s.teams[team_], blockIdx.y, blockIdx.z, 0), all(s), peers(Peers::of_this_block()) {}

  __device__ void sync_team() const { asm volatile("bar.sync %0, %1;" ::"r"(1 + team), "n"(kThreads) : "memory"); }

  // Each lane finds the place of one of the warp's tiles. Its unit is asked for beside what tells how many there are.
  __device__ void find_keys() {
    const int64_t at = static_cast<int64_t>(row) * a.selection.groups + (a.selection.groups == 1 ? 0 : list);
    const int32_t split = first_split + lane / kSplitTiles * teams;
    const int32_t key = split * a.rule.min_keys + (lane % kSplitTiles * kWarps + warp) * kTileKeys;
    const bool listed = key >> a.unit_shift < a.selection.capacity;
    int32_t unit = 0;
    if (listed) unit = a.selection.units[at * a.selection.capacity + (key >> a.unit_shift)];
    keys = hi > 0 ? min(a.selection.counts[at], a.selection.capacity) << a.unit_shift : 0;
    splits = a.rule.splits(keys);
    const bool there = listed && key < keys;
    tiles = __popc(__ballot_sync(kAllLanes, there));
    places = {hi, 0};
    if (there) places = this->place_in_unit(unit, key);
  }

  // To the thread block that merges the head.
  __device__ void give(int32_t split) {
    merge_warps(a.heads_per_list, kColumns, shared.sums, [&](int h, int column, float4 out, float2 softmax) {
      const int peer = h % peers.count, at = h / peers.count * splits + split;
      *peers.at(&all.parts[at][column], peer) = out;
      if (column == 0) *peers.at(&all.softmax[at], peer) = softmax;
    });
  }

  __device__ void walk() {
    int32_t seen = 0;
    int tile = 0;
#pragma unroll 1
    for (int32_t split = first_split; split < splits; split += teams) {
      typename Base::Running sums;
      Base::clear(sums);
#pragma unroll 1
      for (const int end = min(tile + kSplitTiles, tiles); tile < end; ++tile) seen += this->add_tile(tile, sums);
      Base::store(sums, shared.sums);
      sync_team();
      give(split);
      sync_team();
    }
    this->count(seen);
  }

  // A warp a head, of those that fall to this thread block. Adds as weigh_splits() and merge_splits() do.
  __device__ void merge() {
    for (int h = peers.rank + (kWarps * team + warp) * peers.count; h < a.heads_per_list; h += kTeams * kWarps * peers.count) {
      const int at = h / peers.count * splits, column = lane % kColumns;
      const float2 part = lane < splits ? all.softmax[at + lane] : make_float2(-INFINITY, 0.0f);
      float max = part.x;
      for (int step = kWarp / 2; step > 0; step /= 2) max = fmaxf(max, __shfl_xor_sync(kAllLanes, max, step));
      const float weight = relative_weight(part.x, max);
      float sum = weight * part.y;
      for (int step = kWarp / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
      float4 out = {};
#pragma unroll 1
      for (int share = 0; share < a.shares; ++share) {
        float4 some = {};
#pragma unroll 4
        for (int32_t one = share; one < splits; one += a.shares) {
          add_scaled(some, __shfl_sync(kAllLanes, weight, one), all.parts[at + one][column]);
        }
        if (share == 0) {
          out = some;
        } else {
          add_scaled(out, 1.0f, some);
        }
      }
      if (lane < kColumns) write_result(a, row, list * a.heads_per_list + h, list, lane, out, make_float2(max, sum));
    }
  }

  __device__ void run() {
    peers.arrive();
    this->find_row();
    wait_for_previous();
    typename Base::PartsOfQ q;
    this->read_q(q);
    find_keys();
    for (int tile = 0; tile < kStages; ++tile) {
      if (tile < tiles) this->copy_tile(tile, -1);
      prefill::copy_async_commit();
    }
    this->prepare_q(q);
    sync_team();
    peers.wait();  // all thread blocks have begun
    walk();
    peers.sync();
    merge();
  }
};

template <typename Kv, int kDim>
__global__ void __launch_bounds__(kTeams* kThreads, 1) cluster_kernel(const __grid_constant__ Args args) {
  extern __shared__ __align__(128) char memory[];
  let_next_begin();
  Args a = split_args(args, kDim);
  a.selection.kind = Selection::Kind::list;
  ClusterKernel<Kv, kDim>(a, *reinterpret_cast<ClusterShared<Kv, kDim>*>(memory), static_cast<int>(threadIdx.x) / kThreads).run();
}

template <typename Kv, int kDim>
Entry cluster_entry(DType dtype) {
  Entry e;
  e.dtype = dtype;
  e.shape = {.path = Path::cluster, .dim_class = kDim, .tile_heads = 8};
  e.function = reinterpret_cast<const void*>(&cluster_kernel<Kv, kDim>);
  e.shared_bytes = sizeof(ClusterShared<Kv, kDim>);
  return e;
}

// All of one element type.
template <typename Kv>
std::vector<Entry> mma_entries(DType dtype) {
  return {mma_entry<Kv, 64, 1>(dtype), mma_entry<Kv, 128, 1>(dtype), mma_entry<Kv, 256, 1>(dtype), mma_entry<Kv, 128, 2>(dtype),
          split_entry<Kv, 64>(dtype),  split_entry<Kv, 128>(dtype),  cluster_entry<Kv, 64>(dtype), cluster_entry<Kv, 128>(dtype)};
}

}  // namespace fovea::cuda::decode
