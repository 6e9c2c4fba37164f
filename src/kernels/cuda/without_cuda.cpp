// What a build without CUDA has in place of this folder's kernels.
#ifndef FOVEA_WITH_CUDA
#include "kernels/cuda/cuda_ops.h"

namespace fovea {

Result<std::unique_ptr<Ops>> make_cuda_ops(Device&, Numerics) {
  return Status::unsupported("device cuda: this build is without CUDA (configure it with -DFOVEA_CUDA=ON)");
}

}  // namespace fovea
#endif
