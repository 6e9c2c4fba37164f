// Products of any shape, dtype and address in float32: what Numerics::f32 multiplies with, and what cuBLASLt
// does not take.
#pragma once

#include <fovea/kernels/linear.h>

#include <cuda_runtime_api.h>

namespace fovea::cuda {

// out = x w^T + bias. Every output is one chain of fused multiply-adds in ascending k: the same bits whatever
// other rows and outputs the call has. out_stride: floats from a row of weight.out to the next.
void tiled_gemm(const float* x, int rows, int k, const LinearWeight& weight, int out_stride, cudaStream_t stream);

}  // namespace fovea::cuda
