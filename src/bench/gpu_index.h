// The DSA indexer on a GPU: part of `fovea bench ops`.
#pragma once

#include "bench/report.h"
#include "device/device.h"

#include <fovea/status.h>

namespace fovea {

// 64 heads of 128, the best 2,048 of 131,072 keys in random pages of 64: 4,096 rows beside the bare products of the tensor cores
// (512 of float32 keys), and decode rows beside a read of their keys, bandwidth in bytes per second.
Status bench_gpu_index(Device& device, Stream& stream, double bandwidth, int rounds, Report* report);

}  // namespace fovea
