// The compiled prefill kernels: each family fills a table in a source file of its own.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/prefill/args.h"
#include "kernels/cuda/prefill/config.h"

namespace fovea::cuda::prefill {

struct PrefillEntry {
  PrefillPath path;
  DType math;
  int32_t padded_dim;
  int32_t lanes;
  PrefillKernel kernel;
};

PrefillKernel tile_plan_kernel();
std::span<const PrefillEntry> wgmma_kernels();
std::span<const PrefillEntry> mma_bf16_kernels();
std::span<const PrefillEntry> mma_f16_kernels();
std::span<const PrefillEntry> mma_converted_kernels();
std::span<const PrefillEntry> f32_kernels();

}  // namespace fovea::cuda::prefill
