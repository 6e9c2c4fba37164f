// What a build without CUDA has in place of this folder's kernels.
#ifndef FOVEA_WITH_CUDA
#include "base/check.h"
#include "kernels/cuda/ceilings/ceilings.h"
#include "kernels/cuda/cuda_ops.h"

namespace fovea {

Result<std::unique_ptr<Ops>> make_cuda_ops(Device&, Numerics, bool) {
  return Status::unsupported("device cuda: this build is without CUDA (configure it with -DFOVEA_CUDA=ON)");
}

// Who asks for it has a CUDA device, which this build cannot make.
void cuda::read_sweep(const void*, size_t, float*, Stream&) { FOVEA_CHECK(false && "built without CUDA"); }
double cuda::product_sweep(DType, int, float*, Stream&) { FOVEA_CHECK(false && "built without CUDA"); }

}  // namespace fovea
#endif
