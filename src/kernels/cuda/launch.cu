#include "kernels/cuda/launch.h"

namespace fovea::cuda {
namespace {

__global__ void probe_kernel() {}

}  // namespace

bool runs_code_for_hopper() {
  cudaFuncAttributes attributes{};
  check_call("cudaFuncGetAttributes", cudaFuncGetAttributes(&attributes, probe_kernel));
  return attributes.ptxVersion >= 90;
}

}  // namespace fovea::cuda
