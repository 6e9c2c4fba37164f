// XAttention's estimate and choice on an NVIDIA GPU (fovea/kernels/xattention.h; docs/xattention.md): three launches for as many
// tiles as scratch holds. The first lays the queries out as cells, the second multiplies cells and leaves each block's part of each
// row's softmax, the third sums them and chooses.
//
// A score's bits depend on its cells alone, so chunks that are cut at multiples of the block size choose the same.
#pragma once

#include <fovea/kernels/limits.h>
#include <fovea/kernels/linear.h>
#include <fovea/kernels/xattention.h>
#include <fovea/status.h>

#include <cuda_runtime_api.h>

#include "device/device.h"
#include "kernels/cuda/xattention/config.h"

namespace fovea::cuda {

namespace xattention {
struct PassArgs;
}

class XAttentionSelect {
 public:
  // No limits.xattention_stride: it is never run, and takes nothing. Errors: invalid_argument naming the limit and its value;
  // resource_exhausted; unsupported where a kernel does not fit the device.
  Status prepare(const OpsLimits& limits, Device& device, Numerics numerics, int64_t budget = xattention::kScratchBytes);

  // From here on chooses kernels as for a device before Hopper, which every device can run.
  void choose_as_before_hopper() { hopper_ = false; }

  // head_dim a multiple of 16 up to 256. Calls of one object are on one stream: they share its scratch.
  void run(const XAttentionParams& p, cudaStream_t stream);
  void run(const XAttentionChoiceParams& p, cudaStream_t stream);

 private:
  xattention::PassArgs pass(const XAttentionParams& p, const xattention::Config& config, int32_t first, int32_t tiles) const;

  OpsLimits limits_;
  Numerics numerics_ = Numerics::f32;
  bool hopper_ = false;
  int blocks_ = 0;  // of wgmma's kernels
  xattention::Scratch scratch_;
  Buffer plan_;  // queries and what is known of their lanes
  Buffer parts_;
};

}  // namespace fovea::cuda
