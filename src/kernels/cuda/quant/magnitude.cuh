// The largest magnitude of some numbers, NaN where one is.
#pragma once

namespace fovea::cuda::quant {

__device__ __forceinline__ float greater(float a, float b) {
  float out;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(a), "f"(b));
  return out;
}
__device__ __forceinline__ float magnitude(float4 v) {
  return greater(greater(fabsf(v.x), fabsf(v.y)), greater(fabsf(v.z), fabsf(v.w)));
}

}  // namespace fovea::cuda::quant
