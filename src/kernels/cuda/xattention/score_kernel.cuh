// Scores of cells on tensor cores: the product of two matrices whose rows are long (S * head_dim), the right one in pages. Steps of
// the depth go through a ring of stages in shared memory, filled two steps ahead.
#pragma once

#include "kernels/cuda/prefill/hopper.cuh"
#include "kernels/cuda/xattention/cells.cuh"

namespace fovea::cuda::xattention {

// Rows of 128 bytes, their 16-byte chunks permuted by the row's number modulo 8: what ldmatrix reads without bank conflicts, and
// what wgmma takes.
template <int kRows>
struct Panel {
  alignas(1024) uint8_t bytes[kRows * 128];

  __device__ static __forceinline__ uint32_t at(int row, int chunk) { return row * 128 + ((chunk ^ (row & 7)) << 4); }
};

template <int kLaneCount, int kCellCount, int kStageCount>
struct ScoreShared {
  static constexpr int kLanes = kLaneCount, kCells = kCellCount, kStages = kStageCount;
  static constexpr int kPitch = kCells + 8;
  struct Stage {
    Panel<kLanes> q;
    Panel<kCells> k;
  };
  union {
    Stage stages[kStages];
    float scores[kLanes][kPitch];  // when all steps are done
  };
  KeyBases<kCells> bases;
  LaneViews<kLanes> lanes;
};

// ---- Products ----------------------------------------------------------------------------------------------------------------
//
// Each has the sums of a thread, acc[parts][tiles][4]: of every tile of 16 lanes x 8 cells, cells 2c and 2c + 1 of the lanes r and
// r + 8, where r = thread / 4 and c = thread % 4 of its warp.

// 8 warps of 32 lanes x 32 cells.
template <typename Element>
struct MmaProduct {
  using T = Element;
  static constexpr Path kPath = Path::mma;
  using Shared = ScoreShared<128, 64, 3>;
  static constexpr int kThreads = 256, kBlocksPerSm = 2;
  static constexpr int kParts = 2, kTiles = 4;
  using Sums = float[kParts][kTiles][4];

  __device__ static int lane(int part) { return threadIdx.x / 64 * 32 + part * 16 + threadIdx.x % 32 / 4; }
  __device__ static int cell(int, int tile) { return threadIdx.x / 32 % 2 * 32 + tile * 8 + threadIdx.x % 4 * 2; }

  __device__ static __forceinline__ void start(const Shared::Stage& stage, Sums& acc) {
    const int thread = threadIdx.x % 32, first_lane = threadIdx.x / 64 * 32, first_cell = threadIdx.x / 32 % 2 * 32;
    const uint32_t q = prefill::shared_address(stage.q.bytes), k = prefill::shared_address(stage.k.bytes);
#pragma unroll
    for (int step = 0; step < kStep / 16; ++step) {
      uint32_t a[kParts][4];
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        prefill::load_matrices(a[part],
                               q + Panel<Shared::kLanes>::at(first_lane + part * 16 + thread % 16, step * 2 + thread / 16));
      }
#pragma unroll
      for (int pair = 0; pair < kTiles / 2; ++pair) {
        uint32_t b[4];  // 16 cells x 16 elements
        const int row = first_cell + pair * 16 + thread / 16 * 8 + thread % 8;
        prefill::load_matrices(b, k + Panel<Shared::kCells>::at(row, step * 2 + thread / 8 % 2));
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          prefill::multiply_add<T>(acc[part][2 * pair], a[part], b[0], b[1]);
          prefill::multiply_add<T>(acc[part][2 * pair + 1], a[part], b[2], b[3]);
        }
      }
    }
  }
  __device__ static void filled() {}
  __device__ static void keep_one() {}
  __device__ static void finish(Sums&) {}
};

// 2 warpgroups of 64 lanes x 256 cells.
template <typename Element>
struct WgmmaProduct {
  using T = Element;
  static constexpr Path kPath = Path::wgmma;
  using Shared = ScoreShared<128, 256, 4>;
  static constexpr int kThreads = 256, kBlocksPerSm = 1;
  static constexpr int kParts = 2, kTiles = 16;
  using Sums = float[kParts][kTiles][4];

  __device__ static int lane(int) { return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4; }
  __device__ static int cell(int part, int tile) { return part * 128 + tile * 8 + threadIdx.x % 4 * 2; }

  __device__ static __forceinline__ void start(const Shared::Stage& stage, Sums& acc) {
    const int group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);  // the same in a warp, and known to be
#pragma unroll
    for (int part = 0; part < kParts; ++part) prefill::pin(acc[part]);
    prefill::wgmma_begin();
#pragma unroll
    for (int step = 0; step < kStep / 16; ++step) {
      const uint64_t q = prefill::matrix_descriptor(prefill::shared_address(stage.q.bytes) + group * 64 * 128 + step * 32);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const uint64_t k = prefill::matrix_descriptor(prefill::shared_address(stage.k.bytes) + part * 128 * 128 + step * 32);
        prefill::wgmma_keys<T>(acc[part], q, k, true);
      }
    }
    prefill::wgmma_commit();
  }
  // What this thread has put into a stage is there for wgmma.
  __device__ static void filled() { prefill::async_proxy_fence(); }
  // Steps but the latest are done with their stages.
  __device__ static void keep_one() { prefill::wgmma_wait<1>(); }
  __device__ static void finish(Sums& acc) {
    prefill::wgmma_wait<0>();
#pragma unroll
    for (int part = 0; part < kParts; ++part) prefill::pin(acc[part]);
  }
};

// ---- Stages -------------------------------------------------------------------------------------------------------------------

// Fills a stage: each thread one chunk of 16 bytes of every 32nd row.
template <typename Product, bool kConverts>
class StageLoader {
 public:
  using T = typename Product::T;
  using Shared = typename Product::Shared;

  __device__ StageLoader(const PassArgs& args, Shared& shared, int32_t kv_head, int32_t lane, int32_t first, int32_t len)
      : a(args),
        s(shared),
        row_(threadIdx.x / 8),
        chunk_(threadIdx.x % 8),
        first_token_((first + row_) * args.p.stride),
        len_(len),
        queries_(static_cast<const T*>(args.queries) + (static_cast<int64_t>(kv_head) * args.padded_lanes + lane + row_) * depth() +
                 chunk_ * 8) {}

  __device__ __forceinline__ void load(int32_t step) {
    auto& stage = s.stages[step % Shared::kStages];
    const uint32_t at = Panel<Shared::kLanes>::at(row_, chunk_);  // of all its rows: 32 is a multiple of 8
#pragma unroll
    for (int i = 0; i < Shared::kLanes / kRows; ++i) {
      prefill::copy_async_16(prefill::shared_address(stage.q.bytes) + at + i * kRows * 128,
                             queries_ + static_cast<int64_t>(i) * kRows * depth() + step * kStep, true);
    }
    const DepthElement x(a, step, chunk_ * 8);
    const int64_t* bases = s.bases.at[x.s / tokens_of_part(a)] + row_;
    const int32_t offset = offset_in_part(a, x), token = first_token_ + x.s;
#pragma unroll
    for (int i = 0; i < Shared::kCells / kRows; ++i) {
      const bool there = x.there && token + i * kRows * a.p.stride < len_;
      const int64_t from = bases[i * kRows] + offset;
      uint8_t* to = stage.k.bytes + at + i * kRows * 128;
      if constexpr (kConverts) {
        *reinterpret_cast<uint4*>(to) = there ? convert(from) : make_uint4(0, 0, 0, 0);
      } else {
        prefill::copy_async_16(prefill::shared_address(to), static_cast<const T*>(a.p.kv.k) + from, there);
      }
    }
  }

 private:
  static constexpr int kRows = Product::kThreads / 8;

  __device__ int64_t depth() const { return static_cast<int64_t>(2 * a.half_steps) * kStep; }

  // Eight elements of fp8; f16 holds every value of theirs.
  __device__ uint4 convert(int64_t from) const {
    const auto kind = a.p.kv.dtype == DType::fp8_e5m2 ? __NV_E5M2 : __NV_E4M3;
    const uint2 eight = *reinterpret_cast<const uint2*>(static_cast<const uint8_t*>(a.p.kv.k) + from);
    const auto two = [&](uint32_t word, int half) {
      const __half2_raw h = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(word >> (16 * half)), kind);
      return h.x | static_cast<uint32_t>(h.y) << 16;
    };
    return make_uint4(two(eight.x, 0), two(eight.x, 1), two(eight.y, 0), two(eight.y, 1));
  }

  const PassArgs& a;
  Shared& s;
  const int row_, chunk_;
  const int32_t first_token_, len_;
  const T* queries_;
};

// Steps [first, end) of the depth, those before them done and the first two under way.
template <typename Product, typename Loader>
__device__ __forceinline__ void multiply(Loader& loader, typename Product::Shared& s, int32_t first, int32_t end, int32_t steps,
                                         typename Product::Sums& acc) {
  for (int32_t step = first; step < end; ++step) {
    prefill::copy_async_wait<1>();
    Product::filled();
    __syncthreads();  // the step is there for all; the stage that is filled next is free
    Product::start(s.stages[step % Product::Shared::kStages], acc);
    if (step + 2 < steps) loader.load(step + 2);
    prefill::copy_async_commit();
    Product::keep_one();
  }
  Product::finish(acc);
}

// Calls visit(lane, cell, sum) for what a thread holds.
template <typename Product, typename Visit>
__device__ __forceinline__ void each_sum(const typename Product::Sums& acc, Visit visit) {
#pragma unroll
  for (int part = 0; part < Product::kParts; ++part) {
#pragma unroll
    for (int tile = 0; tile < Product::kTiles; ++tile) {
#pragma unroll
      for (int e = 0; e < 4; ++e) visit(Product::lane(part) + e / 2 * 8, Product::cell(part, tile) + e % 2, acc[part][tile][e]);
    }
  }
}

template <typename Product, bool kConverts>
__global__ void __launch_bounds__(Product::kThreads, Product::kBlocksPerSm) score(const __grid_constant__ PassArgs a) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr bool kRuns = true;
#else
  constexpr bool kRuns = Product::kPath == Path::mma;
#endif
  if constexpr (kRuns) {
    using Shared = typename Product::Shared;
    auto& s = *reinterpret_cast<Shared*>(prefill::shared_memory());
    const int32_t kv_head = blockIdx.z, lane = blockIdx.y * Shared::kLanes, first = blockIdx.x * Shared::kCells;
    const int32_t steps = 2 * a.half_steps;
    const float scale = score_scale(a, kv_head);
    each_sequence(a, lane, Shared::kLanes, [&](int32_t tile, int32_t end, const Place& last) {
      if (first * a.p.stride >= last.len) return;
      __syncthreads();  // the sequence before is done with everything
      fill_lanes(a, kv_head, lane, tile, end, s.lanes);
      fill_bases(a, kv_head, last.seq, first, last.len, s.bases);
      __syncthreads();
      StageLoader<Product, kConverts> loader(a, s, kv_head, lane, first, last.len);
      for (int32_t step = 0; step < 2; ++step) {
        loader.load(step);
        prefill::copy_async_commit();
      }
      typename Product::Sums acc = {};
      multiply<Product>(loader, s, 0, a.half_steps, steps, acc);
      const bool diagonal = a.p.causal && place_of(a.p, a.first_tile + tile).block * a.cells < first + Shared::kCells;
      if (diagonal) {
        each_sum<Product>(acc, [&](int l, int c, float sum) {
          if (s.lanes.cell[l] == first + c) s.lanes.half_sum[l] = sum * scale;
        });
      }
      multiply<Product>(loader, s, a.half_steps, steps, steps, acc);
      __syncthreads();  // no stage is read any more
      each_sum<Product>(acc, [&](int l, int c, float sum) { s.scores[l][c] = sum * scale; });
      __syncthreads();
      weigh<Shared::kLanes, Shared::kCells, Shared::kPitch>(a, s.lanes, s.scores[0], first, last.len);
    });
  }
}

template <typename Product, bool kConverts>
ScoreEntry score_entry(DType math) {
  using Shared = typename Product::Shared;
  return {{Product::kPath, math, Shared::kLanes, Shared::kCells},
          kConverts,
          {reinterpret_cast<const void*>(&score<Product, kConverts>), Product::kThreads, static_cast<int32_t>(sizeof(Shared))}};
}

}  // namespace fovea::cuda::xattention
