// Linear layers: which of the ways to multiply a call takes.
#pragma once
#include <fovea/kernels/limits.h>
#include <fovea/kernels/linear.h>
#include <fovea/status.h>

#include "device/device.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/linear/library_gemm.h"
#include "kernels/cuda/quant/config.h"

namespace fovea::cuda {

class Linear {
 public:
  // Errors: resource_exhausted; with Numerics::bf16 also those of CublasLt::open().
  Status prepare(const OpsLimits& limits, Device& device, Numerics numerics);
  void run(const LinearParams& p, const Queue& queue);

 private:
  void run_alike(const LinearParams& p, const Queue& queue);
  void run_bf16(const LinearParams& p, const Queue& queue);
  void run_unpacked(const LinearParams& p, const Queue& queue);
  void round_x(const LinearParams& p, const Queue& queue);
  bool multiply_f16(const LinearParams& p, const LinearWeight& w, const Queue& queue);

  Numerics numerics_ = Numerics::f32;
  LibraryGemm gemm_;
  quant::GpuShape gpu_;
  Buffer rounded_;  // x of the present call in bf16, [max_rows, max_k]
  Buffer widened_;  // some rows of an f16 weight in float32, or of a quantised one in bf16 or float32
};

}  // namespace fovea::cuda
