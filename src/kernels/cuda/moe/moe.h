// Mixture of experts on a GPU (fovea/kernels/moe.h).
//
// Rows are grouped by their experts on the device. A product is one launch over tiles of such rows: as many as there may be, of
// which those that there are not leave at once. Where the matrices lie goes along as a parameter of the launch: a captured one
// reads nothing that a host writes.
#pragma once

#include <fovea/kernels/limits.h>
#include <fovea/kernels/linear.h>
#include <fovea/kernels/moe.h>
#include <fovea/status.h>

#include <cuda_runtime_api.h>

#include "device/device.h"
#include "kernels/cuda/launch.h"

namespace fovea::cuda {

class Moe {
 public:
  // Errors: invalid_argument: sizes that cannot be; unsupported: more experts than a launch can name; resource_exhausted.
  Status prepare(const OpsLimits& limits, Device& device, Numerics numerics);

  // Calls of one object are on one stream: they share its scratch.
  void route(const MoeRouteParams& p, cudaStream_t stream);
  // With Numerics::bf16 tensor cores multiply, where all matrices are bf16 and lie on 16-byte vectors; else float32. A row's bits
  // depend on the row alone.
  void experts(const MoeExpertsParams& p, const Queue& queue);

 private:
  OpsLimits limits_;
  Numerics numerics_ = Numerics::f32;
  Buffer logits_;   // float [max_rows, experts]
  Buffer groups_;   // int32: arrays of moe::Groups
  Buffer rounded_;  // bf16 [max_rows, hidden]: x; with Numerics::bf16
  Buffer inner_;    // float or bf16 [places, inter]
  Buffer parts_;    // float [places, hidden]
};

}  // namespace fovea::cuda
