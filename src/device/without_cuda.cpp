// What a build without CUDA has in place of device/cuda.
#ifndef FOVEA_WITH_CUDA
#include "device/device.h"

namespace fovea {

Result<std::unique_ptr<Device>> make_cuda_device(int) {
  return Status::unsupported("device cuda: this build is without CUDA (configure it with -DFOVEA_CUDA=ON)");
}

}  // namespace fovea
#endif
