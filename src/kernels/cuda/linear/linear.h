// Linear layers: which of the ways to multiply a call takes.
#pragma once
#include <fovea/kernels/elementwise.h>
#include <fovea/kernels/limits.h>
#include <fovea/kernels/linear.h>
#include <fovea/status.h>

#include <map>

#include "device/device.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/linear/fp8_rows.h"
#include "kernels/cuda/linear/library_gemm.h"
#include "kernels/cuda/quant/config.h"

namespace fovea::cuda {

class Linear {
 public:
  // fp8: more than few rows are rounded to e4m3 for fp8 weights, where the library multiplies those; with Numerics::bf16.
  // Errors: resource_exhausted; with Numerics::bf16 also those of CublasLt::open().
  Status prepare(const OpsLimits& limits, Device& device, Numerics numerics, bool fp8 = false);
  // Returns whether the result of a gated call is there, not its two products.
  bool run(const LinearParams& p, const Queue& queue);
  // Whether run() rounds x to e4m3: asked for, weights and rows as choose() says, and the library has a way.
  // The first time that a weight with scales of blocks is seen it waits for the stream; where that is being captured: false.
  bool multiplies_fp8(const LinearParams& p, const Queue& queue);
  // Another operation, then p, which alone reads its result: rounded on the way where p is multiplied in fp8. p.x is first.out.
  // Returns what run() does.
  bool run_after(const SiluMulParams& first, const LinearParams& p, const Queue& queue);
  bool run_after(const RmsNormParams& first, const LinearParams& p, const Queue& queue);

 private:
  bool takes_norm(const RmsNormParams& first, const LinearParams& p) const;
  bool run_alike(const LinearParams& p, const Queue& queue);
  void run_bf16(const LinearParams& p, const Queue& queue);
  void run_unpacked(const LinearParams& p, const Queue& queue);
  void round_x(const LinearParams& p, const Queue& queue);
  Fp8Rows fp8_room(const LinearParams& p) const;
  GemmCall fp8_call(const LinearParams& p, const LinearWeight& w) const;
  GemmCall last_rows(GemmCall all, const Fp8Rows& x, int32_t rows) const;
  bool has_fp8_scales(const WeightView& w, const Queue& queue);
  void run_fp8(const LinearParams& p, const Queue& queue);
  bool multiply_f16(const LinearParams& p, const LinearWeight& w, const Queue& queue);

  Numerics numerics_ = Numerics::f32;
  bool fp8_ = false;
  LibraryGemm gemm_;
  quant::GpuShape gpu_;
  Buffer rounded_;   // x of the present call in bf16 or e4m3, [max_rows, max_k]
  Buffer x_scales_;  // of x in e4m3
  Buffer flag_;
  std::map<const void*, bool> of_blocks_;  // by their scales: weights whose scales are those of blocks, and others
  // Some rows of an f16 weight in float32, or of a quantised one in bf16 or float32; or an fp8 weight's scales as the library has them.
  Buffer widened_;
};

}  // namespace fovea::cuda
