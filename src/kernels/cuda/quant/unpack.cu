// A thread makes 8 elements: a part of 32 as Codes has them. Rows of bytes that are no multiple of 32 are made one by one.
#include "kernels/cuda/quant/unpack.h"

#include "base/check.h"
#include "kernels/cuda/quant/codes.cuh"
#include "kernels/cuda/vec.cuh"

namespace fovea::cuda::quant {
namespace {

constexpr int kThreads = 256;

struct Table {
  const uint8_t* data;
  const uint32_t* scales;
  int64_t row_bytes;
  int cols, group, scales_per_row;
};

Table table_of(const WeightView& w) {
  return {
      static_cast<const uint8_t*>(w.data), static_cast<const uint32_t*>(w.scales), w.row_bytes(), static_cast<int>(w.cols), w.group,
      static_cast<int>(w.scales_per_row())};
}

// Eight elements of a row: v[0] at at[0] and three more, v[1] 16 further on.
template <typename C>
__device__ int part_of_row(const Table& w, int64_t row, int piece, float4 (&v)[2]) {
  const int of_32 = piece / 4, part = piece % 4, block = of_32 * 32 / C::kElements, b = of_32 % (C::kElements / 32);
  const uint8_t* p = w.data + row * w.row_bytes + static_cast<int64_t>(block) * C::kBytes;
  const uint32_t apart = C::kApart ? w.scales[row * w.scales_per_row + of_32 * 32 / w.group] : 0;
  const typename C::Head head = C::head(p, apart);
  const Scales s = C::scales(p, head, b);
  const Pairs codes = pairs_of<C>(p, head, b, part);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float2 even = __bfloat1622float2(as_bf16x2(codes.v[2 * i])), odd = __bfloat1622float2(as_bf16x2(codes.v[2 * i + 1]));
    const float scale = s.scale[i], minimum = s.minimum[i];
    v[i] = {fmaf(scale, even.x, minimum), fmaf(scale, odd.x, minimum), fmaf(scale, even.y, minimum), fmaf(scale, odd.y, minimum)};
  }
  return of_32 * 32 + part * 4;
}

__device__ void store_4(float* to, float4 v) { *reinterpret_cast<float4*>(to) = v; }
__device__ void store_4(__nv_bfloat16* to, float4 v) {
  *reinterpret_cast<uint2*>(to) = {as_bits(__floats2bfloat162_rn(v.x, v.y)), as_bits(__floats2bfloat162_rn(v.z, v.w))};
}

template <typename C>
__device__ float byte_of_row(const Table& w, int64_t row, int col) {
  const float scale = __uint_as_float(w.scales[row * w.scales_per_row + col / w.group]);
  const uint8_t byte = w.data[row * w.row_bytes + col];
  if constexpr (C::kIs == WeightType::int8) return static_cast<float>(static_cast<int8_t>(byte)) * scale;
  const uint32_t bits = (byte & 127) << 4 | (byte & 128) << 8;  // of bf16, less the exponent
  return __uint_as_float(bits << 16) * 0x1p120f * scale;
}

// Row `row` of the table to `to`, by the block's threads from `first` on in strides of `step`.
template <typename C, typename To>
__device__ void make_row(const Table& w, int64_t row, To* to, int first, int step) {
  if constexpr (weight_format(C::kIs).block == 1) {
    if (w.cols % 32 != 0) {
      for (int i = first; i < w.cols; i += step) {
        const float v = byte_of_row<C>(w, row, i);
        if constexpr (sizeof(To) == 4) {
          to[i] = v;
        } else {
          to[i] = __float2bfloat16_rn(v);
        }
      }
      return;
    }
  }
  for (int i = first; i < w.cols / 8; i += step) {
    float4 v[2];
    const int at = part_of_row<C>(w, row, i, v);
    store_4(to + at, v[0]);
    store_4(to + at + 16, v[1]);
  }
}

template <typename C, typename To>
__global__ void __launch_bounds__(kThreads) unpack_kernel(Table w, To* to) {
  let_next_begin();
  wait_for_previous();
  const int64_t row = blockIdx.y;
  const auto first = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  make_row<C>(w, row, to + row * w.cols, first, static_cast<int>(gridDim.x * kThreads));
}

template <typename C>
__global__ void __launch_bounds__(kThreads) embed_kernel(Table w, const int32_t* ids, const int32_t* previous, float* out) {
  let_next_begin();
  wait_for_previous();
  int32_t id = ids[blockIdx.x];
  if (id < 0) id = previous[-1 - id];
  make_row<C>(w, id, out + static_cast<int64_t>(blockIdx.x) * w.cols, threadIdx.x, kThreads);
}

}  // namespace

void unpack(const WeightView& w, DType dtype, void* to, const Queue& queue) {
  constexpr int64_t kRowsMax = 65535;  // of a grid
  const size_t row_bytes = w.cols * dtype_bytes(dtype);
  for (int64_t first = 0; first < w.rows; first += kRowsMax) {
    const int64_t rows = std::min(kRowsMax, w.rows - first);
    const Table table = table_of(w.some_rows(first, rows));
    void* at = static_cast<uint8_t*>(to) + first * row_bytes;
    const dim3 grid(static_cast<unsigned>(ceil_div<int64_t>(w.cols, 8 * kThreads)), static_cast<unsigned>(rows));
    with_codes(w.type, [&](auto codes) {
      using C = decltype(codes);
      if (dtype == DType::f32)
        return launch("unpack", &unpack_kernel<C, float>, grid, kThreads, queue, table, static_cast<float*>(at));
      launch("unpack", &unpack_kernel<C, __nv_bfloat16>, grid, kThreads, queue, table, static_cast<__nv_bfloat16*>(at));
    });
  }
}

void embed(const EmbedParams& p, const Queue& queue) {
  with_codes(p.table.type, [&](auto codes) {
    launch("embed", &embed_kernel<decltype(codes)>, p.tokens, kThreads, queue, table_of(p.table), p.ids, p.previous, p.out);
  });
}

}  // namespace fovea::cuda::quant
