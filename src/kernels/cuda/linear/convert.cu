#include "kernels/cuda/launch.h"
#include "kernels/cuda/linear/convert.h"
#include "kernels/cuda/vec.cuh"

namespace fovea::cuda {
namespace {

constexpr int kThreads = 256;

__device__ inline void convert_one(float from, __nv_bfloat16* to) { *to = __float2bfloat16_rn(from); }
__device__ inline void convert_one(__half from, float* to) { *to = __half2float(from); }

// kEach elements a thread, as one access of each side: 1 where the addresses allow no more.
template <typename From, typename To, int kEach>
__global__ void convert_kernel(const From* from, To* to, int64_t count) {
  struct alignas(sizeof(From) * kEach) FromVector {
    From v[kEach];
  };
  struct alignas(sizeof(To) * kEach) ToVector {
    To v[kEach];
  };
  let_next_begin();
  wait_for_previous();
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kEach;
  if (at >= count) return;
  const FromVector in = *reinterpret_cast<const FromVector*>(from + at);
  ToVector out;
#pragma unroll
  for (int i = 0; i < kEach; ++i) convert_one(in.v[i], &out.v[i]);
  *reinterpret_cast<ToVector*>(to + at) = out;
}

template <typename From, typename To>
void convert(const From* from, To* to, int64_t count, const Queue& queue) {
  if (count == 0) return;
  const bool wide = count % 4 == 0 && aligned16(from) && aligned16(to);
  const auto kernel = wide ? &convert_kernel<From, To, 4> : &convert_kernel<From, To, 1>;
  const int64_t threads = wide ? count / 4 : count;
  launch("convert", kernel, static_cast<unsigned>(ceil_div<int64_t>(threads, kThreads)), kThreads, queue, from, to, count);
}

}  // namespace

void round_to_bf16(const float* from, void* to, int64_t count, const Queue& queue) {
  convert(from, static_cast<__nv_bfloat16*>(to), count, queue);
}

void widen_f16(const void* from, float* to, int64_t count, const Queue& queue) {
  convert(static_cast<const __half*>(from), to, count, queue);
}

}  // namespace fovea::cuda
