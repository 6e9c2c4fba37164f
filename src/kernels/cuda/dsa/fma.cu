// Scores by float32 FMA, each in the order of the contract, so that they equal the reference's bit for bit. Four rows of a
// sequence share a tile of keys, which lies transposed in shared memory: a lane scores 4 neighbouring keys of it against 8 heads
// at once. Where a sequence has fewer rows there, the warps share its row's keys.
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>

#include "kernels/cuda/dsa/args.h"
#include "kernels/cuda/dsa/candidates.cuh"
#include "kernels/cuda/dsa/rows.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/vec.cuh"

namespace fovea::cuda::dsa {
namespace {

constexpr int kThreads = kTileKeys;  // each brings a key
constexpr int kWarps = kThreads / 32;
constexpr int kHeads = 8;  // at once
static_assert(kWarps == kFmaRows);

struct Shared {
  uint32_t counts[kFmaRows];
  float bounds[kFmaRows];
  float scales[kTileKeys];
  ChoiceShared<kThreads> choice;
};

int32_t tile_bytes(int32_t dim) { return dim * kTileKeys * static_cast<int32_t>(sizeof(float)); }

// Elements [8 i, 8 i + 8) of a key.
template <IndexPrecision kPrecision>
__device__ void load_8(const void* keys, int64_t first, float (&x)[8]) {
  if constexpr (kPrecision == IndexPrecision::exact) {
    const auto* from = reinterpret_cast<const float4*>(static_cast<const float*>(keys) + first);
    const float4 a = from[0], b = from[1];
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
  } else if constexpr (kPrecision == IndexPrecision::bf16) {
    widen(*reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(keys) + first), x, __nv_bfloat16{});
  } else {
    const uint2 bytes = *reinterpret_cast<const uint2*>(static_cast<const uint8_t*>(keys) + first);
    const uint32_t words[2] = {bytes.x, bytes.y};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto pair = static_cast<__nv_fp8x2_storage_t>(words[i / 2] >> (16 * (i % 2)));
      const float2 two = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3)));
      x[2 * i] = two.x, x[2 * i + 1] = two.y;
    }
  }
}

// One dimension of neighbouring keys.
template <int kCount>
struct alignas(sizeof(float) * kCount) Keys {
  float of[kCount];
};

// The scores of kCount neighbouring keys, `keys` their column of the tile; without their scale.
template <int kCount>
__device__ void score_keys(const IndexTopkParams& p, int row, const float* keys, float (&sums)[kCount]) {
  const int dim = p.keys.dim;
  const float* weights = p.weights + static_cast<int64_t>(row) * p.heads;
#pragma unroll
  for (int k = 0; k < kCount; ++k) sums[k] = 0.0f;
  for (int first = 0; first < p.heads; first += kHeads) {
    const float* q[kHeads];
    float dots[kHeads][kCount];
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      q[h] = p.q + (static_cast<int64_t>(row) * p.heads + min(first + h, p.heads - 1)) * dim;
#pragma unroll
      for (int k = 0; k < kCount; ++k) dots[h][k] = 0.0f;
    }
    for (int d = 0; d < dim; d += 4) {
      Keys<kCount> x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = *reinterpret_cast<const Keys<kCount>*>(keys + (d + i) * kTileKeys);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const float4 of_head = *reinterpret_cast<const float4*>(q[h] + d);
#pragma unroll
        for (int k = 0; k < kCount; ++k) {
          const float two = fmaf(of_head.y, x[1].of[k], fmaf(of_head.x, x[0].of[k], dots[h][k]));
          dots[h][k] = fmaf(of_head.w, x[3].of[k], fmaf(of_head.z, x[2].of[k], two));
        }
      }
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (first + h >= p.heads) break;
#pragma unroll
      for (int k = 0; k < kCount; ++k) sums[k] = fmaf(weights[first + h], dots[h][k] < 0.0f ? 0.0f : dots[h][k], sums[k]);
    }
  }
}

template <IndexPrecision kPrecision>
class Scorer {
 public:
  __device__ Scorer(const ScoreArgs& args, float* tile, Shared& shared) : a_(args), tile_(tile), s_(shared) {}

  __device__ void run(const RowRun& run) {
    if (threadIdx.x < kFmaRows) s_.counts[threadIdx.x] = 0, s_.bounds[threadIdx.x] = kNoBound;
    const KeyRange range = key_range(run.longest, kTileKeys, blockIdx.y, a_.pass.splits);
    for (int32_t tile = range.begin; tile < range.end; ++tile) {
      __syncthreads();
      load_tile(run, tile * kTileKeys);
      __syncthreads();
      if (run.rows == 1) {
        score_tile<1>(run, tile * kTileKeys);
      } else if (run.rows == 2) {
        score_tile<2>(run, tile * kTileKeys);
      } else {
        score_tile<4>(run, tile * kTileKeys);
      }
      if (a_.p.logits != nullptr) continue;
      __syncthreads();
      for (int r = 0; r < run.rows; ++r) make_room(run, r);
    }
    __syncthreads();
    if (a_.p.logits == nullptr && static_cast<int>(threadIdx.x) < run.rows) {
      a_.counts[list_of(a_, run.first + static_cast<int>(threadIdx.x))] = static_cast<int32_t>(s_.counts[threadIdx.x]);
    }
    __syncthreads();
  }

 private:
  __device__ void load_tile(const RowRun& run, int32_t first) const {
    const IndexKeysView& keys = a_.p.keys;
    const int key = static_cast<int>(threadIdx.x);
    const bool there = first + key < run.longest;
    const int64_t slot = there ? slot_of(keys, run.seq, first + key) : 0;
    for (int d = 0; d < keys.dim; d += 8) {
      float x[8] = {};
      if (there) load_8<kPrecision>(keys.k, slot * keys.dim + d, x);
#pragma unroll
      for (int i = 0; i < 8; ++i) tile_[(d + i) * kTileKeys + key] = x[i];
    }
    if (kPrecision == IndexPrecision::fp8) s_.scales[key] = there ? keys.scale[slot] : 0.0f;
  }

  // A lane takes kCount keys: as many warps as that leaves share a row.
  template <int kCount>
  __device__ void score_tile(const RowRun& run, int32_t first) const {
    constexpr int kWarpsOfRow = kTileKeys / (32 * kCount);
    const int warp = static_cast<int>(threadIdx.x) / 32, r = warp / kWarpsOfRow;
    if (r >= run.rows) return;
    const int row = run.first + r, key = (warp % kWarpsOfRow * 32 + static_cast<int>(threadIdx.x) % 32) * kCount;
    const int32_t len = scored_length(a_.p, row);
    float scores[kCount];
    score_keys<kCount>(a_.p, row, tile_ + key, scores);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const int32_t position = first + key + k;
      if (kPrecision == IndexPrecision::fp8) scores[k] = __fmul_rn(scores[k], s_.scales[key + k]);
      if (a_.p.logits != nullptr) {
        if (position < len) a_.p.logits[(row - a_.first_row) * a_.p.max_len + position] = scores[k];
      } else {
        list(run, r).append(position < len && beats(scores[k], s_.bounds[r]), candidate(scores[k], position));
      }
    }
  }

  __device__ List list(const RowRun& run, int r) const {
    return {a_.lists + static_cast<int64_t>(list_of(a_, run.first + r)) * a_.capacity, &s_.counts[r]};
  }

  __device__ void make_room(const RowRun& run, int r) const {
    if (s_.counts[r] + kTileKeys <= static_cast<uint32_t>(a_.capacity)) return;
    const float bound = list(run, r).cut<8>(Alone<kThreads>{}, static_cast<uint32_t>(a_.p.topk), cut_slack(a_), s_.choice);
    if (threadIdx.x == 0) s_.bounds[r] = bound;
    __syncthreads();
  }

  const ScoreArgs& a_;
  float* const tile_;
  Shared& s_;
};

template <IndexPrecision kPrecision>
__global__ void __launch_bounds__(kThreads) score(const __grid_constant__ ScoreArgs a) {
  extern __shared__ __align__(16) float tile[];
  __shared__ Shared shared;
  const int32_t begin = a.first_row + static_cast<int32_t>(blockIdx.x) * kFmaRows;
  const int32_t end = min(begin + kFmaRows, a.first_row + a.pass.rows);
  Scorer<kPrecision> scorer(a, tile, shared);
  for_each_run(a.p, begin, end, [&](const RowRun& run) { scorer.run(run); });
}

auto kernel_of(IndexPrecision precision) {
  return precision == IndexPrecision::exact  ? &score<IndexPrecision::exact>
         : precision == IndexPrecision::bf16 ? &score<IndexPrecision::bf16>
                                             : &score<IndexPrecision::fp8>;
}

}  // namespace

cudaError_t prepare_fma(int32_t dim) {
  for (IndexPrecision precision : {IndexPrecision::exact, IndexPrecision::bf16, IndexPrecision::fp8}) {
    const cudaError_t e = cudaFuncSetAttribute(kernel_of(precision), cudaFuncAttributeMaxDynamicSharedMemorySize, tile_bytes(dim));
    if (e != cudaSuccess) return e;
  }
  return cudaSuccess;
}

void score_fma(const ScoreArgs& a, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(a.pass.groups), static_cast<unsigned>(a.pass.splits));
  kernel_of(a.p.keys.precision)<<<grid, dim3(kThreads), tile_bytes(a.p.keys.dim), stream>>>(a);
  check_launch("index scores");
}

}  // namespace fovea::cuda::dsa
