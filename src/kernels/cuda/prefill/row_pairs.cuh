// What a thread of a tensor-core kernel does with its share of 16 lanes. Of every tile of 16 lanes x 8 columns, scores and
// outputs alike, it holds four: columns 2c and 2c + 1 of the lanes r and r + 8, where r = thread / 4 and c = thread % 4 of
// its warp. Its two lanes are a row pair; [n][0..1] belongs to the first and [n][2..3] to the second.
#pragma once

#include "kernels/cuda/activations.cuh"
#include "kernels/cuda/prefill/ptx.cuh"
#include "kernels/cuda/prefill/softmax.cuh"

namespace fovea::cuda::prefill {

__device__ __forceinline__ int pair_row() { return threadIdx.x % 32 / 4; }
__device__ __forceinline__ int pair_column() { return threadIdx.x % 4 * 2; }

// What some lanes see: all see [all_lo, all_hi), some see [some_lo, some_hi).
struct SharedView {
  int32_t some_lo = 0, all_lo = 0, all_hi = 0, some_hi = 0;

  template <int kLanes>
  __device__ SharedView(const LaneViews<kLanes>& views, int32_t lanes_in_use, int32_t first, int32_t size) {
    const int32_t last = min(first + size, lanes_in_use) - 1;
    if (last < first) return;
    some_lo = views.lo[first];
    all_lo = views.lo[last];
    all_hi = views.hi[first];
    some_hi = views.hi[last];
  }
};

// Raw scores -> exponents, where the scale is not plain. `key_pos`: positions of the tile's keys.
template <int kTiles, int kLanes>
__device__ __forceinline__ void shape_scores(const ScoreScale& scale, const LaneViews<kLanes>& views, int32_t lane,
                                             const int32_t* key_pos, float (&scores)[kTiles][4]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float slope = views.slope[lane + r * 8];
    const int32_t pos = views.pos[lane + r * 8];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = scores[n][r * 2 + e];
        x = scale.shape(x, slope, key_pos[n * 8 + pair_column() + e] - pos);
      }
    }
  }
}

// -inf for keys that a lane does not see; `key`: the list index of the tile's first.
template <int kTiles, int kLanes>
__device__ __forceinline__ void mask_scores(const LaneViews<kLanes>& views, int32_t lane, int32_t key, float (&scores)[kTiles][4]) {
  key += pair_column();
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int32_t lo = views.lo[lane + r * 8] - key, hi = views.hi[lane + r * 8] - key;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (n * 8 + e < lo || n * 8 + e >= hi) scores[n][r * 2 + e] = -INFINITY;
      }
    }
  }
}

// Takes in the greatest scores of a tile; correction: what the pair's outputs are then to be multiplied with. True if
// that changes any.
template <int kTiles>
__device__ __forceinline__ bool follow_scores(const ScoreScale& scale, const float (&scores)[kTiles][4], RowSoftmax (&rows)[2],
                                              float (&correction)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float greatest = -INFINITY;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) greatest = fmaxf(greatest, fmaxf(scores[n][r * 2], scores[n][r * 2 + 1]));
    greatest = fmaxf(greatest, __shfl_xor_sync(0xffffffffu, greatest, 1));
    greatest = fmaxf(greatest, __shfl_xor_sync(0xffffffffu, greatest, 2));
    correction[r] = rows[r].follow(greatest, scale);
  }
  return correction[0] != 1.0f || correction[1] != 1.0f;
}

// The same for those of the pair of which a thread says that a weight exceeds (RowSoftmax::exceeds()).
template <int kTiles>
__device__ __forceinline__ void follow_exceeding(const ScoreScale& scale, const float (&scores)[kTiles][4],
                                                 const bool (&exceeds)[2], RowSoftmax (&rows)[2], float (&correction)[2]) {
  RowSoftmax followed[2] = {rows[0], rows[1]};
  float by[2];
  follow_scores(scale, scores, followed, by);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const bool some = (__ballot_sync(0xffffffffu, exceeds[r]) >> (threadIdx.x % 32 & ~3) & 0xf) != 0;
    if (some) rows[r] = followed[r];
    correction[r] = some ? by[r] : 1.0f;
  }
}

template <int kTiles>
__device__ __forceinline__ void rescale(const float (&correction)[2], float (&out)[kTiles][4]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) out[n][e] *= correction[e / 2];
  }
}

// RowSoftmax::offset() of a pair.
struct Offsets {
  float of[2];
  __device__ __forceinline__ Offsets(const ScoreScale& scale, const RowSoftmax (&rows)[2])
      : of{rows[0].offset(scale), rows[1].offset(scale)} {}
  // Left to itself, the compiler multiplies again for every score, to save two registers.
  __device__ __forceinline__ void keep() { asm volatile("" : "+f"(of[0]), "+f"(of[1])); }
};

// Scores of one 8-column tile -> weights, added to the pair's sums.
__device__ __forceinline__ void exponentiate(const ScoreScale& scale, const Offsets& offsets, RowSoftmax (&rows)[2],
                                             float (&scores)[4]) {
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    scores[e] = exp2_fast(fmaf(scores[e], scale.factor, -offsets.of[e / 2]));
    rows[e / 2].add(scores[e]);
  }
}

// The weights of 16 keys, rounded, as the left operand of a product.
template <typename T>
__device__ __forceinline__ void pack_weights(const float (&low)[4], const float (&high)[4], uint32_t (&weights)[4]) {
  weights[0] = pack2<T>(low[0], low[1]);
  weights[1] = pack2<T>(low[2], low[3]);
  weights[2] = pack2<T>(high[0], high[1]);
  weights[3] = pack2<T>(high[2], high[3]);
}

// Divides by the sums and writes the pair's rows of out and lse.
template <int kTiles>
__device__ __forceinline__ void store_rows(const PrefillArgs& a, const Job& job, const ScoreScale& scale, int32_t lane,
                                           const RowSoftmax (&rows)[2], const float (&out)[kTiles][4]) {
  const int32_t dim = a.p.kv.head_dim;
  const float v_scale = a.p.kv.v_scale != nullptr ? a.p.kv.v_scale[job.kv_head] : 1.0f;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = rows[r].sum;
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    if (lane + r * 8 >= job.lanes) continue;
    const int64_t at = job.row_head(lane + r * 8, heads_per_row(a.p));
    const float norm = sum == 0.0f ? 0.0f : v_scale / sum;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      if (n * 8 >= dim) break;
      write_activations(a.p.out, a.p.dtype, at * dim + n * 8 + pair_column(),
                        make_float2(out[n][r * 2] * norm, out[n][r * 2 + 1] * norm));
    }
    if (a.p.lse != nullptr && pair_column() == 0) a.p.lse[at] = rows[r].log_sum(sum, scale);
  }
}

}  // namespace fovea::cuda::prefill
