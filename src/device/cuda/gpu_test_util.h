// Tests on a GPU that launch kernels themselves.
#pragma once

#include "device/cuda/cuda_stream.h"
#include "device/gpu_test_util.h"

namespace fovea::testing {

template <typename Base>
class OnGpu : public WithGpu<Base> {
 protected:
  cudaStream_t handle() { return cuda_stream(*this->stream_); }
};
using GpuTest = OnGpu<::testing::Test>;

}  // namespace fovea::testing
