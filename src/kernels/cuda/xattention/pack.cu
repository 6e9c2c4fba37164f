// The queries of a pass as the product takes them: rows of cells, their tokens reversed, rounded.
#include "kernels/cuda/xattention/cells.cuh"

namespace fovea::cuda::xattention {
namespace {

constexpr int kThreads = 256;
constexpr int kChunk = 8;  // elements that a thread copies at a time: head_dim is a multiple

__device__ void store(float* to, float4 x, float4 y) {
  reinterpret_cast<float4*>(to)[0] = x;
  reinterpret_cast<float4*>(to)[1] = y;
}
template <typename T>
__device__ void store(T* to, float4 x, float4 y) {
  *reinterpret_cast<uint4*>(to) = make_uint4(prefill::pack2<T>(x.x, x.y), prefill::pack2<T>(x.z, x.w), prefill::pack2<T>(y.x, y.y),
                                             prefill::pack2<T>(y.z, y.w));
}

// A block a lane. Queries that do not exist are zero, and so is what fills up the lanes and the depth.
template <typename T>
__global__ void __launch_bounds__(kThreads) pack(const __grid_constant__ PassArgs a) {
  const int32_t lane = blockIdx.x, kv_head = blockIdx.y, group = a.group(), stride = a.p.stride;
  const bool used = lane < a.lanes;
  const int32_t row = used ? lane / group : 0;
  const Place at = place_of(a.p, a.first_tile + row / a.cells);
  const int32_t first = (at.block * a.cells + row % a.cells) * stride;  // position of the cell
  const int32_t head = kv_head * group + lane % group;
  T* to = static_cast<T*>(a.queries) + (static_cast<int64_t>(kv_head) * a.padded_lanes + lane) * 2 * a.half_steps * kStep;
  for (int i = threadIdx.x; i < 2 * a.half_steps * kStep / kChunk; i += kThreads) {
    const DepthElement x(a, i * kChunk / kStep, i * kChunk % kStep);
    const int32_t pos = first + stride - 1 - x.s;
    float4 low = make_float4(0, 0, 0, 0), high = low;
    if (used && x.there && pos >= at.begin && pos < at.end) {
      const int64_t from = static_cast<int64_t>(at.row + pos - at.begin) * a.p.num_heads + head;
      const auto* q = reinterpret_cast<const float4*>(a.p.q + from * a.p.kv.head_dim + x.e);
      low = __ldg(q);
      high = __ldg(q + 1);
    }
    store(to + i * kChunk, low, high);
  }
}

}  // namespace

Kernel pack_kernel(DType math) {
  const void* function = math == DType::f32    ? reinterpret_cast<const void*>(&pack<float>)
                         : math == DType::bf16 ? reinterpret_cast<const void*>(&pack<__nv_bfloat16>)
                                               : reinterpret_cast<const void*>(&pack<__half>);
  return {function, kThreads, 0};
}

}  // namespace fovea::cuda::xattention
