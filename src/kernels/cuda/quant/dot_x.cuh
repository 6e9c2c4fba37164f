// Rows of x in shared memory, as dot.cuh's products take them: bytes of numbers that a group shares the step of, in octets of 256
// elements.
#pragma once

#include <cstdint>

#include "kernels/cuda/quant/magnitude.cuh"
#include "kernels/cuda/vec.cuh"

namespace fovea::cuda::quant {

// The norm of x (RmsNormParams), where products compute it themselves. `weight` null: there is none.
struct NormOfX {
  const float *add, *weight;
  float* sum;
  float eps;
};

// Eight chunks of a row of x. Part p of the lanes has chunks 2 p and 2 p + 1, one in each turn.
inline constexpr int kOctet = 8 * 32;
template <int kGroup>
struct Octet {
  static constexpr int kGroups = 32 / kGroup;  // of a chunk
  uint4 bytes[2][2][8];                        // [turn][two of its products][2 part, high bytes; 2 part + 1, low bytes]
  float2 factors[4][2][kGroups];               // [part][turn]: what the numbers high * 128 + low are times of, and the group's sum
};

// Four numbers as bytes high and low. All four of a kind at once: n + 64, whose bits above the seventh are `high`, is what the mantissa
// of 1.5 * 2^23 ends with.
__device__ __forceinline__ void split_bytes(float4 v, float inverse, uint32_t* high, uint32_t* low, int* sum) {
  const auto round = [&](float x) { return __float_as_uint(fmaf(x, inverse, 0x1.8p23f + 64.0f)); };
  const uint32_t a = __byte_perm(round(v.x), round(v.y), 0x5410), b = __byte_perm(round(v.z), round(v.w), 0x5410);
  *high = __byte_perm(a << 1, b << 1, 0x7531);
  const uint32_t below = (__byte_perm(a, b, 0x6420) & 0x7f7f7f7f) ^ 0x40404040;
  *low = below | (below & 0x40404040) << 1;
  *sum += __dp4a(static_cast<int>(*high), 0x01010101, 0) * 128 + __dp4a(static_cast<int>(*low), 0x01010101, 0);
}
// A thread's 8 elements of a row: those that product `of_chunk` of the chunk takes of a lane.
template <int kGroup>
__device__ __forceinline__ void make_part(const float4 (&v)[2], int of_chunk, int chunk, Octet<kGroup>* row_to) {
  constexpr float kMost = 127 * 128;
  constexpr int kGroups = Octet<kGroup>::kGroups;
  constexpr uint32_t kAll = 0xffffffffu;  // lanes: whole warps are here, and another mask takes code
  float most[kGroups], step[kGroups];
  uint32_t high[2], low[2];
  int sum[kGroups] = {};
#pragma unroll
  for (int j = 0; j < kGroups; ++j) {
    most[j] = kGroups == 1 ? greater(magnitude(v[0]), magnitude(v[1])) : magnitude(v[j]);
    most[j] = greater(most[j], __shfl_xor_sync(kAll, most[j], 1));
    most[j] = greater(most[j], __shfl_xor_sync(kAll, most[j], 2));
    step[j] = most[j] * (1.0f / kMost);
    const float inverse = most[j] < 0x1p-112f ? 0.0f : __fdividef(kMost, most[j]);  // of less it would not be finite
#pragma unroll
    for (int h = j; h < 2; h += kGroups) split_bytes(v[h], inverse, &high[h], &low[h], &sum[j]);
    sum[j] += __shfl_xor_sync(kAll, sum[j], 1);
    sum[j] += __shfl_xor_sync(kAll, sum[j], 2);
  }
  Octet<kGroup>& o = row_to[chunk / 8];
  const int part = chunk % 8 / 2, turn = chunk % 2;
  auto* to = reinterpret_cast<uint2*>(&o.bytes[turn][of_chunk / 2][2 * part]) + of_chunk % 2;
  to[0] = {high[0], high[1]}, to[2] = {low[0], low[1]};
  if (of_chunk != 0) return;
#pragma unroll
  for (int j = 0; j < kGroups; ++j) o.factors[part][turn][j] = {step[j], step[j] * static_cast<float>(sum[j])};
}

// Where piece i of 8 elements of a row begins; its other four are 16 behind.
__device__ __forceinline__ int place_of(int piece) { return piece / 4 * 32 + piece % 4 * 4; }

// f(first 4 elements, 4 that are 16 behind them, i) for piece i of 8 elements of a row: i % 4 of chunk i / 4; zeros from k on. Several
// loads are under way before the first is used. f is there once: its instructions come from device memory too.
template <typename F>
__device__ __forceinline__ void for_each_part(const float* x, int k, int octets, F&& f) {
  constexpr int kAtOnce = 4;
  const int pieces = octets * (kOctet / 8);  // of whole warps
  const int step = blockDim.x;
  float4 v[kAtOnce][2] = {};
#pragma unroll 1
  for (int i = threadIdx.x, loaded = 0; i < pieces; i += step, --loaded) {
    if (loaded == 0) {
      loaded = kAtOnce;
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int at = i + j * step;
        v[j][0] = v[j][1] = {};
        if (at * 8 >= k) continue;  // k is a multiple of 32
        const float* from = x + place_of(at);
        v[j][0] = *reinterpret_cast<const float4*>(from), v[j][1] = *reinterpret_cast<const float4*>(from + 16);
      }
    }
    f(v[0], i);
#pragma unroll
    for (int j = 0; j + 1 < kAtOnce; ++j) v[j][0] = v[j + 1][0], v[j][1] = v[j + 1][1];
  }
}

// What for_each_part does, of x + add (null: x) times the norm's weights, of which `weight` are those of the thread's first piece: the
// factor 1 / rms is left to who has all squares, of which this returns the thread's. sum: where x + add goes, some of it from every
// thread block. meanwhile(): what is done while the first of x is on its way.
template <typename Meanwhile, typename F>
__device__ __forceinline__ float for_each_normed(const NormOfX& norm, const float* x, const float* add, float* sum,
                                                 const float4 (&weight)[2], int k, int octets, Meanwhile&& meanwhile, F&& f) {
  const int pieces = octets * (kOctet / 8), own = (pieces + gridDim.x - 1) / gridDim.x, first_own = blockIdx.x * own;
  float squares = 0.0f;
  int i = threadIdx.x;
  do {
    const int at = place_of(i);
    const bool there = i * 8 < k;
    float4 v[2] = {}, more[2] = {};
    if (there) {
#pragma unroll
      for (int h = 0; h < 2; ++h) v[h] = load_now(x + at + 16 * h);
      if (add) {
#pragma unroll
        for (int h = 0; h < 2; ++h) more[h] = load_now(add + at + 16 * h);
      }
    }
    if (i < static_cast<int>(blockDim.x)) meanwhile();
    if (there) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        v[h] = {v[h].x + more[h].x, v[h].y + more[h].y, v[h].z + more[h].z, v[h].w + more[h].w};
        if (add && i >= first_own && i < first_own + own) *reinterpret_cast<float4*>(sum + at + 16 * h) = v[h];
        squares += v[h].x * v[h].x + v[h].y * v[h].y + v[h].z * v[h].z + v[h].w * v[h].w;
        const float4 w = i < static_cast<int>(blockDim.x) ? weight[h] : load_now(norm.weight + at + 16 * h);
        v[h] = {v[h].x * w.x, v[h].y * w.y, v[h].z * w.z, v[h].w * w.w};
      }
    }
    if (i < pieces) f(v, i);
    i += blockDim.x;
  } while (i < pieces);
  return squares;
}

}  // namespace fovea::cuda::quant
