// Decode attention in float32 FMA: f32 KV, where it is exact, and layout classic of any element.
//
// A warp takes 32 keys at a time, a lane holds the place of one. Scores: eight lanes share a key and each
// takes every eighth 16-byte chunk of it, four keys at once. Weights: lane l has every fourth key, from l / 8
// on, of head l % 8. Values: a lane owns dimensions 4l .. and 128 + 4l .., and the keys go by four at a time.
#pragma once

#include "kernels/cuda/decode/merge.cuh"
#include "kernels/cuda/decode/mma.cuh"

namespace fovea::cuda::decode {

struct ScalarF32 {
  using Stored = float;
  __device__ static float widen(Stored x) { return x; }
};
struct ScalarBf16 {
  using Stored = __nv_bfloat16;
  __device__ static float widen(Stored x) { return __bfloat162float(x); }
};
struct ScalarF16 {
  using Stored = __half;
  __device__ static float widen(Stored x) { return __half2float(x); }
};
template <__nv_fp8_interpretation_t kKind>
struct ScalarFp8 {
  using Stored = __nv_fp8_storage_t;
  __device__ static float widen(Stored x) { return __half2float(__half(__nv_cvt_fp8_to_halfraw(x, kKind))); }
};

template <typename Kv, KvLayout kLayout>
struct ScalarKernel {
  using Stored = typename Kv::Stored;
  static constexpr int kHeads = 8, kDim = 256;
  static constexpr int kChunk = 16 / sizeof(Stored);  // elements
  static constexpr int kParts = kDim / (4 * kWarp);   // float4s of a lane
  static constexpr bool kClassic = kLayout == KvLayout::classic;

  struct Shared {
    ItemFinder::Shared items;
    WorkList list;
    alignas(16) float q[kHeads][kDim];
    alignas(16) float weights[kWarps][kHeads][kBatchKeys + 4];  // first the scores; padded
                                                                // against bank conflicts
    alignas(16) WarpPartials<kHeads, kDim> partials;
  };

  struct Running {
    float max, sum;  // of head lane % 8, `sum` of this lane's keys
    float4 out[kHeads][kParts];
  };

  const Args& a;
  Shared& shared;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;

  __device__ ScalarKernel(const Args& args, Shared& s) : a(args), shared(s) {}

  // The start of a key's block and head in layout classic, of the key itself in hnd.
  __device__ static const Stored* at(const void* cache, const KeyPlaces& places, int key) {
    return reinterpret_cast<const Stored*>(static_cast<const char*>(cache) + __shfl_sync(kAllLanes, places.offset, key));
  }
  __device__ int token_of(const KeyPlaces& places, int key) const {
    return kClassic ? __shfl_sync(kAllLanes, places.pos, key) & (a.p.kv.block_size - 1) : 0;
  }

  __device__ void share_q() {
    const HeadTile& heads = shared.list.heads;
    const int d = a.p.kv.head_dim;
    const int64_t q = (static_cast<int64_t>(shared.list.keys.row) * a.p.num_heads + heads.first) * d;
    for (int i = 4 * threadIdx.x; i < heads.count * d; i += 4 * kThreads) {
      *reinterpret_cast<float4*>(&shared.q[i / d][i % d]) = read_activations(a.p.q, a.p.dtype, q + i);
    }
  }

  // Adds one chunk of a key to the dot products with all heads.
  __device__ void multiply_chunk(const Stored* chunk, int first_dim, float (&dots)[kHeads]) const {
    const uint4 bits = *reinterpret_cast<const uint4*>(chunk);
    const auto* x = reinterpret_cast<const Stored*>(&bits);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (h >= shared.list.heads.count) break;
#pragma unroll
      for (int e = 0; e < kChunk; ++e) dots[h] += Kv::widen(x[e]) * shared.q[h][first_dim + e];
    }
  }

  // Scores of keys first .. first + 3, before scale and masks.
  __device__ void multiply_k(const KeyPlaces& places, int first) {
    const int key = first + lane / 8;
    const Stored* k = at(a.p.kv.k, places, key);
    const int pitch = kClassic ? a.p.kv.block_size * kChunk : kChunk;  // elements from a chunk to the next
    k += token_of(places, key) * kChunk;
    float dots[kHeads] = {};
    if ((places.valid >> key & 1) != 0) {
#pragma unroll 4
      for (int c = lane % 8; c < a.p.kv.head_dim / kChunk; c += 8) multiply_chunk(k + c * pitch, c * kChunk, dots);
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (h >= shared.list.heads.count) break;
      for (int lanes = 1; lanes < 8; lanes *= 2) dots[h] += __shfl_xor_sync(kAllLanes, dots[h], lanes);
      if (h == lane % 8) shared.weights[warp][h][key] = dots[h];
    }
  }

  __device__ float bias_and_mask(float score, const KeyPlaces& places, int key) const {
    const int head = min(lane % 8, shared.list.heads.count - 1);
    const int32_t pos = __shfl_sync(kAllLanes, places.pos, key);
    float x = score * shared.list.score_scale;
    if (a.p.soft_cap > 0.0f) x = a.p.soft_cap * kLog2e * tanhf(x);
    if (a.p.alibi_slopes != nullptr) {
      x += a.p.alibi_slopes[shared.list.heads.first + head] * kLog2e * static_cast<float>(pos - shared.list.keys.pos);
    }
    return (places.valid >> key & 1) != 0 ? x : -INFINITY;
  }

  // Scores become weights relative to the largest score so far; what was summed up before is rescaled.
  __device__ void weigh(const KeyPlaces& places, Running& run) {
    constexpr int kMine = kBatchKeys / 4;
    float* weights = shared.weights[warp][lane % 8];
    float x[kMine], max = run.max;
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      x[i] = bias_and_mask(weights[4 * i + lane / 8], places, 4 * i + lane / 8);
      max = fmaxf(max, x[i]);
    }
    max = fmaxf(max, __shfl_xor_sync(kAllLanes, max, 8));
    max = fmaxf(max, __shfl_xor_sync(kAllLanes, max, 16));
    const float rescale = relative_weight(run.max, max);
    run.max = max;
    run.sum *= rescale;
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      x[i] = relative_weight(x[i], max);
      weights[4 * i + lane / 8] = x[i];
      run.sum += x[i];
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (h >= shared.list.heads.count) break;
      const float f = __shfl_sync(kAllLanes, rescale, h);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        float4& out = run.out[h][part];
        out = make_float4(out.x * f, out.y * f, out.z * f, out.w * f);
      }
    }
  }

  // Four dimensions of one key's value; 0 beyond head_dim.
  __device__ float4 load_value(const Stored* v, int token, int dim) const {
    if (dim >= a.p.kv.head_dim) return {};
    const int pitch = kClassic ? a.p.kv.block_size : 1;  // elements from a dimension to the next
    v += static_cast<int64_t>(dim) * pitch + token;
    if constexpr (!kClassic && sizeof(Stored) == 4) return *reinterpret_cast<const float4*>(v);
    return make_float4(Kv::widen(v[0]), Kv::widen(v[pitch]), Kv::widen(v[2 * pitch]), Kv::widen(v[3 * pitch]));
  }

  // Keys first .. first + 3; one that is not to be read adds nothing, were it NaN.
  __device__ void multiply_v(const KeyPlaces& places, int first, Running& run) const {
    float4 values[4][kParts];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Stored* v = at(a.p.kv.v, places, first + i);
      const int token = token_of(places, first + i);
      const bool seen = (places.valid >> (first + i) & 1) != 0;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        values[i][part] = seen ? load_value(v, token, 4 * (lane + kWarp * part)) : float4{};
      }
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (h >= shared.list.heads.count) break;
      const float4 w = *reinterpret_cast<const float4*>(&shared.weights[warp][h][first]);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        add_scaled(run.out[h][part], w.x, values[0][part]);
        add_scaled(run.out[h][part], w.y, values[1][part]);
        add_scaled(run.out[h][part], w.z, values[2][part]);
        add_scaled(run.out[h][part], w.w, values[3][part]);
      }
    }
  }

  __device__ void store(const Running& run) {
    auto& s = shared.partials;
    float sum = run.sum;
    sum += __shfl_xor_sync(kAllLanes, sum, 8);
    sum += __shfl_xor_sync(kAllLanes, sum, 16);
    if (lane < kHeads) s.max[warp][lane] = run.max, s.sum[warp][lane] = sum;
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (h >= shared.list.heads.count) break;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        *reinterpret_cast<float4*>(&s.out[warp][h][4 * (lane + kWarp * part)]) = run.out[h][part];
      }
    }
  }

  __device__ void walk(int32_t split, Running& run) {
    KeyCursor cursor(a, shared.list, sizeof(Stored), kClassic ? 0 : a.p.kv.tokens_apart() * sizeof(Stored));
    cursor.start(split, split);
    for (int32_t tiles = tiles_of_warp(shared.list, split); tiles > 0; tiles -= 2) {
      const KeyPlaces places = cursor.next();
#pragma unroll 1
      for (int key = 0; key < kBatchKeys; key += 4) multiply_k(places, key);
      __syncwarp();
      weigh(places, run);
      __syncwarp();
#pragma unroll 1
      for (int key = 0; key < kBatchKeys; key += 4) multiply_v(places, key, run);
      __syncwarp();
      if (lane == 0) atomicAdd(&shared.partials.keys_read, __popc(places.valid));
    }
  }

  // `run` splits of shared.list from `split` on. Returns the next turn.
  __device__ int attend(int32_t split, int32_t run, int turn) {
    wait_for_previous();
    share_q();
    __syncthreads();
    return finish_run(a, shared.list, split, run, shared.partials, turn, [&](int32_t one) {
      Running sums = {-INFINITY, 0.0f, {}};
      walk(one, sums);
      store(sums);
    });
  }
};

template <typename Kv, KvLayout kLayout>
__global__ void __launch_bounds__(kThreads, 2 * kCtasPerSm) scalar_kernel(const __grid_constant__ Args a) {
  using Kernel = ScalarKernel<Kv, kLayout>;
  extern __shared__ __align__(16) char memory[];
  auto& shared = *reinterpret_cast<typename Kernel::Shared*>(memory);
  Kernel kernel(a, shared);
  for_each_run(a, shared, [&](int32_t split, int32_t run, int turn) { return kernel.attend(split, run, turn); });
}

}  // namespace fovea::cuda::decode
