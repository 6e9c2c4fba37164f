// Decode attention of few rows, a thread block a split: bf16, f16 and fp8 KV in layout hnd, of all keys or of lists.
//
// A step meets its code cold in every layer, since the weights between sweep the caches, and beside them each read takes a
// microsecond. So this is little code, its thread blocks ask nobody which split is theirs, and of a dense row all keys that fit
// are on their way before the kernel ahead has ended. What it computes is MmaKernel's, bit for bit.
//
// Splits merge without counters or fences: scratch holds kEmpty where nothing was written, and whoever merges a head asks
// for the partial results until none is empty, and empties them for the next launch. So the device must hold all thread blocks of
// the grid at once: those that have begun wait for the others.
#pragma once

#include "kernels/cuda/decode/mma_kernel.cuh"

namespace fovea::cuda::decode {

// A NaN that arithmetic does not produce: its own are 0x7fffffff.
inline constexpr uint32_t kEmpty = 0x01010101u * kEmptyByte;
__device__ __forceinline__ bool is_empty(float x) { return __float_as_uint(x) == kEmpty; }

// Read from and written to the L2 cache, each time.
__device__ __forceinline__ float4 load_4(const void* from) {
  float4 x;
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "l"(from)
               : "memory");
  return x;
}
__device__ __forceinline__ float2 load_2(const void* from) {
  float2 x;
  asm volatile("ld.relaxed.gpu.global.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "l"(from) : "memory");
  return x;
}
__device__ __forceinline__ void store(void* to, float4 x) {
  asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w) : "memory");
}
__device__ __forceinline__ void store(void* to, float2 x) {
  asm volatile("st.relaxed.gpu.global.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x.x), "f"(x.y) : "memory");
}

// What calls of this kernel have (see has_split_kernel()), as constants.
__device__ __forceinline__ Args split_args(const Args& args, int head_dim) {
  Args a = args;
  a.p.dtype = DType::f32, a.p.kv.head_dim = head_dim;
  a.p.soft_cap = 0.0f, a.p.alibi_slopes = nullptr, a.p.window = 0;
  a.first_row = 0, a.tmp_out = nullptr, a.head_tiles = 1;
  return a;
}

template <typename Kv, int kDim>
struct SplitShared {
  using Kernel = MmaKernel<Kv, kDim, 1>;
  WorkList list;
  alignas(16) uint4 q[1][Kernel::kSlices][2][kWarp];
  union {
    typename Kernel::Ring rings[kWarps];
    struct {  // when all keys have been read
      WarpPartials<8, kDim> partials;
      alignas(16) float4 parts[kMaxSplits * kDim / 4];  // [splits, kDim] of a head
    };
  };
};

template <typename Kv, int kDim, typename Memory = SplitShared<Kv, kDim>>
struct SplitKernel : MmaKernel<Kv, kDim, 1, Memory> {
  using Base = MmaKernel<Kv, kDim, 1, Memory>;
  using Stored = typename Base::Stored;
  using Base::a, Base::shared, Base::lane, Base::warp, Base::g, Base::t, Base::kStages, Base::kChunks, Base::kSlices;
  static constexpr int kColumns = kDim / 4;  // of 4 elements of a result

  // The thread block's.
  const int32_t list, row, split;
  int32_t seq = 0, hi = 0;               // positions below hi are visible
  int32_t fresh = 0;                     // K and V from this position on are of the step
  int32_t keys = 0, first = 0, end = 0;  // of the list, and which of them are the split's
  const int32_t* units = nullptr;
  // The warp's: how many tiles of the split it takes, and where they lie, one a lane.
  int32_t tiles = 0;
  struct Place {
    int32_t pos, slot;
  };
  Place places{}, next_places{};
  // Most lists are cut into splits of the least size: what is needed to find the lane's tile of such a one, its unit or slot, is asked
  // for beside what tells the size.
  int32_t guessed_key = -1, guess = 0;

  __device__ SplitKernel(const Args& args, Memory& s, int32_t list_, int32_t row_, int32_t split_)
      : Base(args, s), list(list_), row(row_), split(split_) {}

  __device__ int block_shift() const { return __ffs(a.p.kv.block_size) - 1; }
  __device__ bool listed() const { return a.selection.kind == Selection::Kind::list; }

  __device__ void guess_place(const int32_t* from, int shift, int64_t count) {
    const int32_t tile = lane * kWarps + warp, key = split * a.rule.min_keys + tile * kTileKeys;
    if (tile * kTileKeys >= a.rule.min_keys || key >> shift >= count) return;
    guessed_key = key;
    guess = from[key >> shift];
  }

  // What no kernel of the step writes.
  __device__ void find_row() {
    const int32_t likely = min(row, a.p.num_seqs - 1);
    const PageTableView& table = a.p.kv.table;
    if (begins_early(a)) guess_place(table.slots + likely * table.seq_stride, block_shift(), table.seq_stride);
    const int32_t from = __ldg(a.p.q_indptr + likely), to = __ldg(a.p.q_indptr + likely + 1);
    int32_t len = __ldg(a.p.seq_len + likely), rows = to - from, behind = to - row;
    seq = likely;
    if (row < from || row >= to) {
      guessed_key = -1;
      seq = segment_of(a.p.q_indptr, a.p.num_seqs, row);
      len = a.p.seq_len[seq], behind = a.p.q_indptr[seq + 1] - row, rows = a.p.q_indptr[seq + 1] - a.p.q_indptr[seq];
    }
    hi = max(len - behind + 1, 0);
    fresh = len - rows;
  }

  // Where the warp's tile `tile` lies; any place where there is none.
  __device__ Place place_of(int tile) const {
    const int32_t key = first + (tile * kWarps + warp) * kTileKeys;
    if (key >= end) return {hi, 0};
    const bool guessed = key == guessed_key;
    if (listed()) return place_in_unit(guessed ? guess : units[key >> a.unit_shift], key);
    return {key, guessed ? guess : slot_of(key)};
  }
  __device__ Place place_in_unit(int32_t unit, int32_t key) const {
    const int32_t pos = (unit << a.unit_shift) + (key & ((1 << a.unit_shift) - 1));
    return {pos, pos < hi ? slot_of(pos) : 0};
  }
  __device__ int32_t slot_of(int32_t pos) const {
    const PageTableView& table = a.p.kv.table;
    return table.slots[seq * table.seq_stride + list * table.head_stride + (pos >> block_shift())];
  }

  // False: there is no such split.
  __device__ bool find_keys() {
    keys = hi;
    if (listed()) {
      const int64_t at = static_cast<int64_t>(row) * a.selection.groups + (a.selection.groups == 1 ? 0 : list);
      units = a.selection.units + at * a.selection.capacity;
      guess_place(units, a.unit_shift, a.selection.capacity);
      keys = hi > 0 ? min(a.selection.counts[at], a.selection.capacity) << a.unit_shift : 0;
    }
    const int32_t size = a.rule.split_keys(keys);
    first = split * size;
    end = min(first + size, keys);
    tiles = ((max(end - first, 0) + kTileKeys - 1) / kTileKeys - warp + kWarps - 1) / kWarps;
    if (split > 0 && first >= keys) return false;
    places = place_of(lane);
    next_places = place_of(kWarp + lane);
    return true;
  }

  __device__ int64_t offset_of(int32_t pos, int32_t slot) const {  // bytes
    const KvView& kv = a.p.kv;
    return (slot * kv.block_stride + list * kv.head_stride + (pos & (kv.block_size - 1)) * kv.tokens_apart()) *
           static_cast<int>(sizeof(Stored));
  }

  // All of a tile's keys but the one at `without`.
  __device__ void copy_tile(int tile, int32_t without) {
    constexpr int kRows = kWarp / kChunks;  // that the warp copies at once
    const KvView& kv = a.p.kv;
    auto& stage = shared.rings[warp].stages[tile % kStages];
    const uint32_t to_k = prefill::shared_address(stage.k), to_v = prefill::shared_address(stage.v);
    const int32_t pos = __shfl_sync(kAllLanes, places.pos, tile % kWarp), slot = __shfl_sync(kAllLanes, places.slot, tile % kWarp);
    const int byte = lane % kChunks * 16, token_bytes = static_cast<int>(kv.tokens_apart() * sizeof(Stored));
    int64_t from = offset_of(pos, slot) + lane / kChunks * token_bytes + byte;
    if (lane == 0) shared.rings[warp].pos[tile % kStages][0] = pos;
#pragma unroll 2
    for (int i = lane / kChunks; i < kTileKeys; i += kRows) {
      const bool there = pos + i < hi;
      const int64_t at = there ? from : 0;
      if (pos + i != without) {
        prefill::copy_async_16(to_k + Base::k_at(i, byte), static_cast<const char*>(kv.k) + at, there);
        prefill::copy_async_16(to_v + Base::v_at(i, byte), static_cast<const char*>(kv.v) + at, there);
      }
      from += kRows * token_bytes;
    }
  }

  // The key at `pos`, of which copy_tile() left room in the warp's last tile, if that is where it is.
  __device__ void copy_key(int32_t pos) {
    const int tile = tiles - 1, i = pos - __shfl_sync(kAllLanes, places.pos, tile % kWarp);
    const int32_t slot = __shfl_sync(kAllLanes, places.slot, tile % kWarp);
    if (tile < 0 || tile >= kStages || i < 0 || i >= kTileKeys) return;
    auto& stage = shared.rings[warp].stages[tile];
    const bool is_k = lane < kChunks;
    const int byte = lane % kChunks * 16;
    const uint32_t to =
        is_k ? prefill::shared_address(stage.k) + Base::k_at(i, byte) : prefill::shared_address(stage.v) + Base::v_at(i, byte);
    const auto* from = static_cast<const char*>(is_k ? a.p.kv.k : a.p.kv.v) + offset_of(pos, slot) + byte;
    if (lane < 2 * kChunks) prefill::copy_async_16(to, from, true);
    prefill::copy_async_commit();
    prefill::copy_async_wait<0>();
  }

  __device__ void read_q(typename Base::PartsOfQ& x) const {
    x[0][0] = x[0][1] = {};
    if (warp < kSlices && g < a.heads_per_list) {
      const int64_t head = static_cast<int64_t>(row) * a.p.num_heads + list * a.heads_per_list + g;
      const float* q = static_cast<const float*>(a.p.q) + head * kDim + 32 * warp + 8 * t;
      x[0][0] = load_4(q), x[0][1] = load_4(q + 4);
    }
  }
  __device__ void prepare_q(const typename Base::PartsOfQ& x) {
    Base::share_q(x);
    if (threadIdx.x % kThreads == 0) {
      shared.list.heads.count = a.heads_per_list;
      shared.list.score_scale = score_scale(a.p, list);
    }
  }

  // Returns how many keys of the tile are there.
  __device__ int32_t add_tile(int tile, typename Base::Running& sums) {
    prefill::copy_async_wait<kStages - 1>();
    __syncwarp();
    const auto& stage = shared.rings[warp].stages[tile % kStages];
    typename Base::Scores scores;
    Base::multiply_k(stage.k, scores);
    const int there = min(max(hi - shared.rings[warp].pos[tile % kStages][0], 0), kTileKeys);
    Base::bias_and_mask(0, (1u << there) - 1, scores);
    Base::weigh(scores, sums);
    Base::multiply_v(stage.v, scores, sums);
    __syncwarp();
    if (tile + kStages < tiles) copy_tile(tile + kStages, -1);
    prefill::copy_async_commit();
    return there;
  }

  __device__ void walk(typename Base::Running& sums) {
    int32_t seen = 0;
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
      seen += add_tile(tile, sums);
      if ((tile + kStages) % kWarp == kWarp - 1) {
        places = next_places;
        next_places = place_of(tile + kStages + 1 + kWarp + lane);
      }
    }
    count(seen);
  }
  __device__ void count(int32_t seen) const {
    if (lane == 0 && a.p.keys_read != nullptr) {
      atomicAdd(reinterpret_cast<unsigned long long*>(a.p.keys_read + row), static_cast<unsigned long long>(seen));
    }
  }

  // Of head h of the list: [max_splits].
  __device__ int64_t scratch_of(int h) const {
    return (static_cast<int64_t>(row) * a.p.num_heads + list * a.heads_per_list + h) * a.rule.max_splits;
  }

  // Three warps fetch the splits' results of head h, one weighs them.
  __device__ void merge(int h, int32_t splits) {
    constexpr int kFetchers = kThreads - kWarp;
    const float nothing = __uint_as_float(kEmpty);
    auto& s = shared.partials;
    auto* from = reinterpret_cast<float4*>(a.split_out) + scratch_of(h) * kColumns;
    if (warp == kWarps - 1) {
      float2* softmax = a.split_softmax + scratch_of(h);
      weigh_splits(h, splits, s, [&](int32_t one) {
        float2 x;
        do x = load_2(softmax + one);
        while (is_empty(x.x) || is_empty(x.y));
        store(softmax + one, make_float2(nothing, nothing));
        return x;
      });
    } else {
      bool waits;
#pragma unroll 1
      do {
#pragma unroll 1
        for (int i = threadIdx.x; i < splits * kColumns; i += kFetchers) {
          prefill::copy_async_16(prefill::shared_address(shared.parts + i), from + i, true);
        }
        prefill::copy_async_commit();
        prefill::copy_async_wait<0>();
        waits = false;
#pragma unroll 1
        for (int i = threadIdx.x; i < splits * kColumns; i += kFetchers) {
          const float4 x = shared.parts[i];
          waits |= is_empty(x.x) || is_empty(x.y) || is_empty(x.z) || is_empty(x.w);
        }
      } while (waits);
#pragma unroll 1
      for (int i = threadIdx.x; i < splits * kColumns; i += kFetchers)
        store(from + i, make_float4(nothing, nothing, nothing, nothing));
    }
    __syncthreads();
    if (threadIdx.x < kColumns) {
      float4 out = {};
#pragma unroll 1
      for (int share = 0; share < a.shares; ++share) {  // as merge_splits() adds
        float4 sum = {};
#pragma unroll 4
        for (int32_t one = share; one < splits; one += a.shares) {
          add_scaled(sum, s.weight[h][one], shared.parts[one * kColumns + threadIdx.x]);
        }
        if (share == 0) {
          out = sum;
        } else {
          add_scaled(out, 1.0f, sum);
        }
      }
      write_result(a, row, list * a.heads_per_list + h, list, threadIdx.x, out, s.softmax[h]);
    }
    __syncthreads();
  }

  // Leaves the split's result in scratch.
  __device__ void attend(bool early) {
    typename Base::PartsOfQ x;
    if (!early) read_q(x);  // behind keys it would come last
    // Of a single key of the step all others are asked for before it is there.
    const bool newest = early && end > fresh && hi - fresh == 1;
    if (early && end > fresh && !newest) wait_for_previous();
    for (int tile = 0; tile < kStages; ++tile) {
      if (tile < tiles) copy_tile(tile, newest ? fresh : -1);
      prefill::copy_async_commit();
    }
    if (early) wait_for_previous();
    if (newest) copy_key(fresh);
    if (early) read_q(x);
    prepare_q(x);
    __syncthreads();
    typename Base::Running sums;
    Base::clear(sums);
    walk(sums);
    __syncthreads();  // of the ring
    Base::store(sums, shared.partials);
    __syncthreads();
    merge_warps(a.heads_per_list, kColumns, shared.partials, [&](int h, int column, float4 out, float2 softmax) {
      store(reinterpret_cast<float4*>(a.split_out) + (scratch_of(h) + split) * kColumns + column, out);
      if (column == 0) store(a.split_softmax + scratch_of(h) + split, softmax);
    });
  }

  __device__ void run() {
    const bool early = begins_early(a);
    if (early) let_next_begin();
    find_row();
    if (!early) wait_for_previous();
    if (!find_keys()) return early ? wait_for_previous() : void();
    attend(early);
    // Keys that were chosen in this step could not be asked for ahead. Had the next kernel begun, its requests for weights would stand
    // before those for keys and for others' splits.
    if (!early) let_next_begin();
    // Of a row that is longer than the launch was told there are splits that nobody computes.
    const int32_t splits = min(a.rule.splits(keys), static_cast<int32_t>(gridDim.z));
    for (int h = split; h < a.heads_per_list; h += splits) merge(h, splits);
  }
};

template <typename Kv, int kDim>
__global__ void __launch_bounds__(kThreads, 3) split_kernel(const __grid_constant__ Args args) {
  extern __shared__ __align__(128) char memory[];
  const Args a = split_args(args, kDim);
  SplitKernel<Kv, kDim>(a, *reinterpret_cast<SplitShared<Kv, kDim>*>(memory), blockIdx.x, blockIdx.y, blockIdx.z).run();
}

template <typename Kv, int kDim>
Entry split_entry(DType dtype) {
  Entry e;
  e.dtype = dtype;
  e.shape = {.path = Path::split, .dim_class = kDim, .tile_heads = 8};
  e.function = reinterpret_cast<const void*>(&split_kernel<Kv, kDim>);
  e.shared_bytes = sizeof(SplitShared<Kv, kDim>);
  return e;
}

}  // namespace fovea::cuda::decode
