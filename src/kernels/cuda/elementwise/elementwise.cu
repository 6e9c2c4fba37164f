#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/elementwise/silu.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/vec.cuh"

namespace fovea::cuda {
namespace {

constexpr int kThreads = 256;

// `gate` may be `out`: an element is read before it is written, by the same thread.
__global__ void silu_mul_kernel(const float4* gate, const float4* up, float4* out, int64_t count) {
  let_next_begin();
  wait_for_previous();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const float4 g = gate[i], u = up[i];
  out[i] = {silu_mul_one(g.x, u.x), silu_mul_one(g.y, u.y), silu_mul_one(g.z, u.z), silu_mul_one(g.w, u.w)};
}

__global__ void silu_mul_any_kernel(const float* gate, const float* up, float* out, int64_t count) {
  let_next_begin();
  wait_for_previous();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) out[i] = silu_mul_one(gate[i], up[i]);
}

// The angle is rounded to float32 before its sine is taken, as models are trained with. A step's first kernel: what has been
// uploaded for the step is there before any other begins, so that these may read it before they wait.
__global__ void rope_angles_kernel(RopeAnglesParams p) {
  wait_for_previous();
  let_next_begin();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= static_cast<int64_t>(p.tokens) * p.half) return;
  const float angle = __fmul_rn(static_cast<float>(p.positions[i / p.half]), p.inv_freq[i % p.half]);
  float sin = 0.0f, cos = 0.0f;
  sincosf(angle, &sin, &cos);
  p.cos[i] = cos * p.scaling;
  p.sin[i] = sin * p.scaling;
}

unsigned blocks_for(int64_t count) { return static_cast<unsigned>(ceil_div<int64_t>(count, kThreads)); }

}  // namespace

void silu_mul(const SiluMulParams& p, const Queue& queue) {
  const int64_t count = static_cast<int64_t>(p.rows) * p.dim;
  if (count == 0) return;
  if (count % 4 == 0 && aligned16(p.gate) && aligned16(p.up) && aligned16(p.out)) {
    launch("silu_mul", silu_mul_kernel, blocks_for(count / 4), kThreads, queue, reinterpret_cast<const float4*>(p.gate),
           reinterpret_cast<const float4*>(p.up), reinterpret_cast<float4*>(p.out), count / 4);
  } else {
    launch("silu_mul", silu_mul_any_kernel, blocks_for(count), kThreads, queue, p.gate, p.up, p.out, count);
  }
}

void rope_angles(const RopeAnglesParams& p, const Queue& queue) {
  const int64_t count = static_cast<int64_t>(p.tokens) * p.half;
  if (count == 0) return;
  launch("rope_angles", rope_angles_kernel, blocks_for(count), kThreads, queue, p);
}

}  // namespace fovea::cuda
