// Latent attention on a GPU: part of `fovea bench ops`.
#pragma once

#include "bench/report.h"
#include "device/device.h"

#include <fovea/status.h>

namespace fovea {

// DeepSeek-V3's layer: 128 heads that read 2,048 of 131,072 entries of 512 + 64 in random pages of 64, a choice of its own for each
// row, as a prompt's rows and as answers; beside the bare products of the tensor cores.
Status bench_gpu_latent(Device& device, Stream& stream, int rounds, Report* report);

}  // namespace fovea
