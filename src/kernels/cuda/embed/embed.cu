#include "kernels/cuda/embed/embed.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/quant/unpack.h"
#include "kernels/cuda/vec.cuh"

namespace fovea::cuda {
namespace {

constexpr int kThreads = 256;

// One block a token. kWide: 16 bytes of the table a thread, which hidden and the addresses must allow.
template <typename T, bool kWide>
__global__ void embed_kernel(const T* table, const int32_t* ids, const int32_t* previous, float* out, int hidden) {
  let_next_begin();
  wait_for_previous();
  const int64_t token = blockIdx.x;
  int32_t id = ids[token];
  if (id < 0) id = previous[-1 - id];
  const T* from = table + static_cast<int64_t>(id) * hidden;
  float* to = out + token * hidden;
  if constexpr (kWide) {
    for (int i = threadIdx.x * kVec<T>; i < hidden; i += kThreads * kVec<T>) {
      float values[kVec<T>];
      widen(load_streaming(from + i), values, T{});
#pragma unroll
      for (int j = 0; j < kVec<T>; j += 4)
        *reinterpret_cast<float4*>(to + i + j) = {values[j], values[j + 1], values[j + 2], values[j + 3]};
    }
  } else {
    for (int i = threadIdx.x; i < hidden; i += kThreads) to[i] = to_f32(from[i]);
  }
}

}  // namespace

void embed(const EmbedParams& p, const Queue& queue) {
  if (p.tokens == 0) return;
  if (!is_plain(p.table.type)) return quant::embed(p, queue);
  with_float_type(p.table.dtype(), [&](auto type) {
    using T = decltype(type);
    const auto* table = static_cast<const T*>(p.table.data);
    const bool wide = p.hidden % kVec<T> == 0 && aligned16(table) && aligned16(p.out);
    const auto kernel = wide ? &embed_kernel<T, true> : &embed_kernel<T, false>;
    launch("embed", kernel, p.tokens, kThreads, queue, table, p.ids, p.previous, p.out, p.hidden);
  });
}

}  // namespace fovea::cuda
