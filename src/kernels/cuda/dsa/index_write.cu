// A warp takes one vector of one token: a query head, or the key.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <bit>
#include <cmath>

#include "base/check.h"
#include "kernels/common/checks.h"
#include "kernels/cuda/dsa/dsa.h"
#include "kernels/cuda/kv_write/cache_key.cuh"
#include "kernels/cuda/kv_write/vector.cuh"
#include "kernels/cuda/launch.h"

namespace fovea::cuda {
namespace dsa {
namespace {

using kv_writing::kAllLanes;
using kv_writing::kWarp;

constexpr int kWarps = 4;  // of a CTA

struct WriteArgs {
  IndexWriteParams p;
  float weight_factor = 0;
  float hadamard_factor = 0;
};

template <int kRegs>
struct IndexVector : kv_writing::Vector<kRegs> {
  using kv_writing::Vector<kRegs>::x;
  using kv_writing::Vector<kRegs>::element;

  // Biased variance, in float64 until the end: the order of the sums does not show.
  __device__ void layer_norm(const float* weight, const float* bias, int d, float eps) {
    double sum = 0.0, squares = 0.0;
#pragma unroll
    for (int r = 0; r < kRegs; ++r) sum += x[r];
    const double mean = sum_of_lanes(sum) / d;
#pragma unroll
    for (int r = 0; r < kRegs; ++r) squares += element(r) < d ? (x[r] - mean) * (x[r] - mean) : 0.0;
    const auto inverse = static_cast<float>(1.0 / sqrt(sum_of_lanes(squares) / d + eps));
    const auto centre = static_cast<float>(mean);
#pragma unroll
    for (int r = 0; r < kRegs; ++r) {
      const int e = element(r);
      if (e < d) x[r] = __fadd_rn(__fmul_rn(__fmul_rn(__fsub_rn(x[r], centre), inverse), weight[e]), bias[e]);
    }
  }

  __device__ void round_to_bf16() {
#pragma unroll
    for (int r = 0; r < kRegs; ++r) x[r] = __bfloat162float(__float2bfloat16_rn(x[r]));
  }

  // H x d^-0.5, H the Walsh-Hadamard matrix in Sylvester order; d a power of two.
  __device__ void hadamard(int d, float factor) {
    const int lane = element(0);
    for (int h = 1; h < kWarp && h < d; h *= 2) {
#pragma unroll
      for (int r = 0; r < kRegs; ++r) {
        const float other = __shfl_xor_sync(kAllLanes, x[r], h);
        x[r] = (lane & h) != 0 ? other - x[r] : x[r] + other;
      }
    }
#pragma unroll
    for (int h = 1; h < kRegs; h *= 2) {
#pragma unroll
      for (int r = 0; r < kRegs; ++r) {
        if ((r & h) != 0 || h * kWarp >= d) continue;
        const float a = x[r], b = x[r + h];
        x[r] = a + b;
        x[r + h] = a - b;
      }
    }
#pragma unroll
    for (int r = 0; r < kRegs; ++r) x[r] *= factor;
  }

  // Divides by the scale that it returns: the least power of two that brings all into e4m3's range.
  __device__ float scale_to_e4m3() {
    float most = 1e-4f;
#pragma unroll
    for (int r = 0; r < kRegs; ++r) most = fmaxf(most, fabsf(x[r]));  // a NaN is none
    for (int step = 1; step < kWarp; step *= 2) most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, step));
    const uint32_t ratio = __float_as_uint(__fdiv_rn(most, 448.0f));
    const float scale = __uint_as_float(((ratio >> 23) + ((ratio & 0x7fffffu) != 0)) << 23);
#pragma unroll
    for (int r = 0; r < kRegs; ++r) x[r] = __fdiv_rn(x[r], scale);
    return scale;
  }

 private:
  __device__ static double sum_of_lanes(double y) {
    for (int step = 1; step < kWarp; step *= 2) y += __shfl_xor_sync(kAllLanes, y, step);
    return y;
  }
};

// To fp8, without the last rounding; returns the scale.
template <int kRegs>
__device__ float prepare_fp8(const WriteArgs& a, IndexVector<kRegs>& v) {
  v.round_to_bf16();
  v.hadamard(a.p.keys.dim, a.hadamard_factor);
  v.round_to_bf16();
  return v.scale_to_e4m3();
}

template <int kRegs>
__device__ void write_query(const WriteArgs& a, int token, int head, const kv_writing::Rope& rope, float* row) {
  const IndexWriteParams& p = a.p;
  const int64_t at = static_cast<int64_t>(token) * p.heads + head;
  float* q = p.q + at * p.keys.dim;
  IndexVector<kRegs> v;
  v.load(q, p.keys.dim);
  if (rope.dim > 0) v.rope(rope, row);
  float scale = 1.0f;
  if (p.keys.precision == IndexPrecision::bf16) v.round_to_bf16();
  if (p.keys.precision == IndexPrecision::fp8) {
    scale = prepare_fp8(a, v);
#pragma unroll
    for (int r = 0; r < kRegs; ++r) {
      v.x[r] = kv_writing::widen_fp8(kv_writing::narrow_fp8(v.x[r], DType::fp8_e4m3), DType::fp8_e4m3);
    }
  }
  v.save(q, p.keys.dim);
  if (v.element(0) == 0) p.weights[at] = __fmul_rn(__fmul_rn(p.weights[at], a.weight_factor), scale);
}

template <int kRegs>
__device__ void write_key(const WriteArgs& a, int token, const kv_writing::Rope& rope, float* row) {
  const IndexWriteParams& p = a.p;
  const int64_t slot = p.slot_mapping[token];
  if (slot < 0) return;
  const int dim = p.keys.dim;
  IndexVector<kRegs> v;
  v.load(p.k + static_cast<int64_t>(token) * dim, dim);
  v.layer_norm(p.norm_weight, p.norm_bias, dim, p.norm_eps);
  if (rope.dim > 0) v.rope(rope, row);
  if (p.keys.precision == IndexPrecision::fp8) {
    const float scale = prepare_fp8(a, v);
    if (v.element(0) == 0) p.keys.scale[slot] = scale;
  }
#pragma unroll
  for (int r = 0; r < kRegs; ++r) {
    const int e = v.element(r);
    if (e >= dim) continue;
    const int64_t at = slot * dim + e;
    if (p.keys.precision == IndexPrecision::exact) {
      static_cast<float*>(p.keys.k)[at] = v.x[r];
    } else if (p.keys.precision == IndexPrecision::bf16) {
      static_cast<__nv_bfloat16*>(p.keys.k)[at] = __float2bfloat16_rn(v.x[r]);
    } else {
      static_cast<__nv_fp8_storage_t*>(p.keys.k)[at] = kv_writing::narrow_fp8(v.x[r], DType::fp8_e4m3);
    }
  }
}

template <int kRegs>
__global__ void __launch_bounds__(kWarps* kWarp) write(const __grid_constant__ WriteArgs a) {
  __shared__ float rows[kWarps][kWarp * kRegs];
  const IndexWriteParams& p = a.p;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, vectors = p.heads + 1;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kWarps + warp;
  const int token = static_cast<int>(index / vectors), head = static_cast<int>(index % vectors);
  if (token >= p.tokens) return;
  const int64_t angle = static_cast<int64_t>(token) * (p.rope_dim / 2);
  const kv_writing::Rope rope{p.rope_dim, p.rope_interleaved, p.cos + angle, p.sin + angle};
  if (head < p.heads) {
    write_query<kRegs>(a, token, head, rope, rows[warp]);
  } else {
    write_key<kRegs>(a, token, rope, rows[warp]);
  }
}

}  // namespace
}  // namespace dsa

void index_write(const IndexWriteParams& p, cudaStream_t stream) {
  check_index_write(p);
  if (p.tokens == 0) return;
  const double dim = p.keys.dim;
  const dsa::WriteArgs args{p, static_cast<float>(1.0 / std::sqrt(p.heads * dim)), static_cast<float>(1.0 / std::sqrt(dim))};
  auto* kernel = p.keys.dim <= 128 ? &dsa::write<4> : &dsa::write<8>;
  const int64_t ctas = ceil_div<int64_t>(int64_t{p.tokens} * (p.heads + 1), dsa::kWarps);
  FOVEA_CHECK(ctas <= INT32_MAX);
  kernel<<<dim3(static_cast<unsigned>(ctas)), dim3(dsa::kWarps * 32), 0, stream>>>(args);
  check_launch("index write");
}

}  // namespace fovea::cuda
