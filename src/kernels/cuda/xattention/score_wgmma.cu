// Scores of cells on Hopper's tensor cores, 256 lanes x 128 cells a thread block. Its first warpgroup copies, the two others
// multiply 128 lanes each and make the softmax's parts of what they hold in registers. Thread blocks stay and walk tiles, so the
// next tile is on its way while the last one's parts are made. Blocks that share the copies of queries in clusters of 2 or 4 wait
// for each other more than they gain (H100, 128K tokens: 408 against 624 TFLOP/s), and warpgroups that take turns gain nothing
// (579).
#include "kernels/cuda/prefill/hopper.cuh"
#include "kernels/cuda/xattention/key_chunks.cuh"

namespace fovea::cuda::xattention {
namespace {

using namespace prefill;  // PTX

constexpr int kLanes = 256, kCells = 128, kStages = 4, kGroups = 2, kThreads = 128 * (kGroups + 1);
constexpr int kParts = kLanes / kGroups / 64, kTiles = kCells / 8;
constexpr int kCopyRegisters = 72, kMultiplyRegisters = 216;  // of 64K: 168 a thread at the start
constexpr unsigned kAllLanes = 0xffffffffu;

struct Shared {
  struct Stage {
    Panel<kLanes> q;
    Panel<kCells> k;
  };
  Stage stages[kStages];
  KeyBases<kCells> bases;
  uint64_t full[kStages];   // the stage has come
  uint64_t empty[kStages];  // all warps are done with it
};

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ __forceinline__ void copy_bytes(void* to, const void* from, int bytes, uint64_t& barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(&barrier))
               : "memory");
}
// Arrives when this thread's copies so far have come.
__device__ __forceinline__ void arrive_with_copies(uint64_t& barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&barrier)) : "memory");
}

// ---- Work ----------------------------------------------------------------------------------------------------------------------

// A tile of lanes, as far as it belongs to one sequence, with a tile of its cells.
struct Work {
  int32_t kv_head, lane_tile;
  int32_t first;  // cell of the tile
  LaneRun run;
};

// What this thread block does. The tiles of lanes of a pass follow each other for the same cells, which the L2 cache then still
// has.
class Walk {
 public:
  __device__ explicit Walk(const PassArgs& args)
      : a(args),
        lane_tiles_(args.padded_lanes / kLanes),
        items_(args.p.kv.kv_heads * lane_tiles_ * args.cell_tiles),
        item_(static_cast<int32_t>(blockIdx.x)) {
    take();
  }

  __device__ __forceinline__ bool next(Work& work) {
    while (item_ < items_) {
      const LaneRun run = *run_++;
      if (run.seq < 0) {
        item_ += static_cast<int32_t>(gridDim.x);
        take();
      } else if (first_ * a.p.stride < run.len) {
        work = {kv_head_, lane_tile_, first_, run};
        return true;
      }
    }
    return false;
  }

 private:
  __device__ void take() {
    lane_tile_ = item_ % lane_tiles_;
    first_ = item_ / lane_tiles_ % a.cell_tiles * kCells;
    kv_head_ = item_ / lane_tiles_ / a.cell_tiles;
    run_ = a.runs + static_cast<int64_t>(lane_tile_) * a.run_slots;
  }

  const PassArgs& a;
  const int32_t lane_tiles_, items_;
  int32_t item_, lane_tile_ = 0, first_ = 0, kv_head_ = 0;
  const LaneRun* run_ = nullptr;
};

// The stages in turn.
struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

// ---- The copying warpgroup ------------------------------------------------------------------------------------------------------

template <typename T, bool kConverts>
__device__ __forceinline__ void copy_steps(const PassArgs& a, Shared& s) {
  constexpr int kBarrier = 1, kCopying = 128;
  const int steps = 2 * a.half_steps;
  Walk walk(a);
  Ring ring;
  for (Work work; walk.next(work);) {
    named_barrier_wait(kBarrier, kCopying);  // nobody reads the bases of the tile before
    fill_bases(a, work.kv_head, work.run.seq, work.first, work.run.len, kCopying, s.bases);
    named_barrier_wait(kBarrier, kCopying);
    KeyChunks<kCells, kCopying, kConverts> keys(a, work.first, work.run.len);
    const T* queries = queries_of<T>(a, work.kv_head, work.lane_tile, 0);
    if constexpr (kConverts) {
      keys.seek(a, 0, s.bases);
      keys.read(a);
    }
#pragma unroll 1
    for (int step = 0; step < steps; ++step, ring.advance()) {
      if constexpr (!kConverts) keys.seek(a, step, s.bases);
      auto& stage = s.stages[ring.stage];
      uint64_t& full = s.full[ring.stage];
      barrier_wait(s.empty[ring.stage], ring.parity ^ 1);
      if (threadIdx.x == 0) {
        barrier_arrive_expecting(full, kLanes * 128);
        copy_bytes(stage.q.bytes, queries + static_cast<int64_t>(step) * kLanes * kStep, kLanes * 128, full);
      }
      if constexpr (kConverts) {
        keys.store(a, stage.k.bytes);
        if (step + 1 < steps) {  // on their way while this step is waited for
          keys.seek(a, step + 1, s.bases);
          keys.read(a);
        }
        async_proxy_fence();
        barrier_arrive(full);
      } else {
        keys.copy(a, stage.k.bytes);
        arrive_with_copies(full);
      }
    }
  }
}

// ---- The multiplying warpgroups -------------------------------------------------------------------------------------------------

// A thread holds of every tile of 64 lanes x 8 cells the cells 2c and 2c + 1 of two lanes: [part][tile][2 i + e] is cell 2c + e of
// the part's lane i.
template <typename T, bool kConverts>
class Multiplier {
 public:
  __device__ Multiplier(const PassArgs& args, Shared& shared, int group)
      : a(args),
        s(shared),
        group_(group),
        column_(threadIdx.x % 4 * 2),
        lane_(group * (kLanes / kGroups) + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4) {}

  __device__ __forceinline__ void run() {
    Walk walk(a);
    for (Work work; walk.next(work);) {
      float acc[kParts][kTiles][4];
      float half[kParts][2] = {};
      LanePlace places[kParts][2];
      read_places(work, places);
      multiply(0, a.half_steps, acc);
      if (a.p.causal && work.run.first < work.first + kCells) keep_half(work, places, acc, half);
      multiply(a.half_steps, 2 * a.half_steps, acc);
      weigh(work, places, half, acc);
    }
  }

 private:
  using Sums = float[kParts][kTiles][4];

  __device__ __forceinline__ void read_places(const Work& work, LanePlace (&places)[kParts][2]) const {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int32_t lane = work.lane_tile * kLanes + lane_ + part * 64 + i * 8;
        places[part][i] = lane < a.lanes ? a.places[lane] : LanePlace{-1, -1, 0, 0};
      }
    }
  }

  __device__ __forceinline__ void multiply(int first, int end, Sums& acc) {
    int before = 0;
#pragma unroll 1
    for (int step = first; step < end; ++step, ring_.advance()) {
      barrier_wait(s.full[ring_.stage], ring_.parity);
      if constexpr (!kConverts) async_proxy_fence();  // keys were not copied by the engine that reads them
#pragma unroll
      for (int part = 0; part < kParts; ++part) pin(acc[part]);
      wgmma_begin();
#pragma unroll
      for (int i = 0; i < kStep / 16; ++i) {
        const uint64_t k = matrix_descriptor(shared_address(s.stages[ring_.stage].k.bytes) + i * 32);
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          const int lane = group_ * (kLanes / kGroups) + part * 64;
          const uint64_t q = matrix_descriptor(shared_address(s.stages[ring_.stage].q.bytes) + lane * 128 + i * 32);
          wgmma_keys<T>(acc[part], q, k, step > 0 || i > 0);
        }
      }
      wgmma_commit();
      if (step > first) {
        wgmma_wait<1>();
        leave(before);
      }
      before = ring_.stage;
    }
    wgmma_wait<0>();
#pragma unroll
    for (int part = 0; part < kParts; ++part) pin(acc[part]);
    leave(before);
  }

  // This warp is done with a stage.
  __device__ __forceinline__ void leave(int stage) {
    if (threadIdx.x % 32 == 0) barrier_arrive(s.empty[stage]);
  }

  // The sums of a lane with its own cell, after half the depth.
  __device__ __forceinline__ void keep_half(const Work& work, const LanePlace (&places)[kParts][2], const Sums& acc,
                                            float (&half)[kParts][2]) const {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int32_t own = places[part][i].cell - work.first - column_;
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
          for (int e = 0; e < 2; ++e) half[part][i] = own == tile * 8 + e ? acc[part][tile][2 * i + e] : half[part][i];
        }
      }
    }
  }

  __device__ __forceinline__ void weigh(const Work& work, const LanePlace (&places)[kParts][2], const float (&half)[kParts][2],
                                        Sums& acc) const {
    const float scale = score_scale(a, work.kv_head);
    const int32_t blocks = (work.run.len - work.first * a.p.stride + a.p.block_size - 1) / a.p.block_size;  // that exist
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const LanePlace& place = places[part][i];
        const bool used = place.seq == work.run.seq;
        const Sight sight{place.cell, place.lo, place.hi, work.run.len, a.p.stride, a.p.causal};
        if (__any_sync(kAllLanes, used && !sight.whole(work.first, kCells))) {
#pragma unroll
          for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              float& x = acc[part][tile][2 * i + e];
              x = sight.score(work.first + tile * 8 + column_ + e, x, half[part][i]);
            }
          }
        }
        const int32_t lane = work.lane_tile * kLanes + lane_ + part * 64 + i * 8, group = a.group();
        const int64_t row = static_cast<int64_t>(lane / group) * a.p.num_heads + work.kv_head * group + lane % group;
        const float greatest = greatest_of(acc[part], i, scale);
        if (used && column_ == 0) a.greatest[row * a.cell_tiles + work.first / kCells] = greatest;
        float* to = used ? a.weights + row * a.p.capacity + work.first / a.cells : nullptr;
        if (a.cells >= 8) {
          weigh_large(acc[part], i, scale, greatest, blocks, to);
        } else {
          weigh_small(acc[part], i, scale, greatest, blocks, to);
        }
      }
    }
  }

  // Of a lane's scores with the tile, scaled.
  __device__ __forceinline__ static float greatest_of(const float (&acc)[kTiles][4], int i, float scale) {
    float x = -INFINITY;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) x = fmaxf(x, fmaxf(acc[tile][2 * i], acc[tile][2 * i + 1]));
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
    return fmaxf(x * scale, kNoScore);
  }

  // A lane's scores with two neighbouring cells as weights.
  __device__ __forceinline__ static float2 weights_of(const float (&tile)[4], int i, float scale, float greatest) {
    return make_float2(exp2_fast(fmaf(tile[2 * i], scale, -greatest)), exp2_fast(fmaf(tile[2 * i + 1], scale, -greatest)));
  }

  // The sums of a lane's blocks of 8 cells and more. Of every four tiles each of the lane's threads sums one: it gives away what it
  // does not go on with.
  __device__ __forceinline__ void weigh_large(const float (&acc)[kTiles][4], int i, float scale, float greatest, int32_t blocks,
                                              float* to) const {
    const bool high = (column_ & 4) != 0, odd = (column_ & 2) != 0;
    const int last = a.cells == 8 ? column_ / 2 : a.cells == 16 ? column_ / 4 : 0;
    const bool writes = to != nullptr && (a.cells == 8 || (a.cells == 16 ? !odd : column_ == 0));
#pragma unroll
    for (int four = 0; four < kTiles / 4; ++four) {
      float sums[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 x = weights_of(acc[four * 4 + j], i, scale, greatest);
        sums[j] = x.x + x.y;
      }
      const float even_sum = (high ? sums[2] : sums[0]) + __shfl_xor_sync(kAllLanes, high ? sums[0] : sums[2], 2);
      const float odd_sum = (high ? sums[3] : sums[1]) + __shfl_xor_sync(kAllLanes, high ? sums[1] : sums[3], 2);
      float sum = (odd ? odd_sum : even_sum) + __shfl_xor_sync(kAllLanes, odd ? even_sum : odd_sum, 1);
      if (a.cells > 8) sum += __shfl_xor_sync(kAllLanes, sum, 1);
      if (a.cells > 16) sum += __shfl_xor_sync(kAllLanes, sum, 2);
      const int32_t block = four * 32 / a.cells + last;
      if (writes && block < blocks) to[block] = sum;
    }
  }

  // Likewise of 1, 2 or 4 cells.
  __device__ __forceinline__ void weigh_small(const float (&acc)[kTiles][4], int i, float scale, float greatest, int32_t blocks,
                                              float* to) const {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      float2 x = weights_of(acc[tile], i, scale, greatest);
      const float pair = x.x + x.y, four = pair + __shfl_xor_sync(kAllLanes, pair, 1);
      if (a.cells > 1) x.x = a.cells == 2 ? pair : four;
      const int32_t block = (tile * 8 + column_) / a.cells;
      if (to == nullptr || block >= blocks) continue;
      if (a.cells < 4 || column_ % 4 == 0) to[block] = x.x;
      if (a.cells == 1 && block + 1 < blocks) to[block + 1] = x.y;
    }
  }

  const PassArgs& a;
  Shared& s;
  const int group_, column_, lane_;
  Ring ring_;
};

#endif

template <typename T, bool kConverts>
__global__ void __launch_bounds__(kThreads, 1) score_wgmma(const __grid_constant__ PassArgs a) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  auto& s = *reinterpret_cast<Shared*>(shared_memory());
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      barrier_init(s.full[stage], 128 + 1);  // the threads that copy keys, and one for the queries
      barrier_init(s.empty[stage], kGroups * 4);
    }
    barrier_init_fence();
  }
  __syncthreads();
  const int group = __shfl_sync(kAllLanes, threadIdx.x / 128, 0) - 1;  // the same in a warp, and known to be
  if (group < 0) {
    keep_registers<kCopyRegisters>();
    copy_steps<T, kConverts>(a, s);
  } else {
    take_registers<kMultiplyRegisters>();
    Multiplier<T, kConverts>(a, s, group).run();
  }
#endif
}

template <typename T, bool kConverts>
ScoreEntry entry(DType math) {
  return {{Path::wgmma, math, kLanes, kCells},
          kConverts,
          {reinterpret_cast<const void*>(&score_wgmma<T, kConverts>), kThreads, static_cast<int32_t>(sizeof(Shared))}};
}

}  // namespace

std::span<const ScoreEntry> wgmma_kernels() {
  static const ScoreEntry kEntries[] = {entry<__nv_bfloat16, false>(DType::bf16), entry<__half, false>(DType::f16),
                                        entry<__half, true>(DType::f16)};
  return kEntries;
}

}  // namespace fovea::cuda::xattention
