// PlacedWeights: a model's weights where operations can read them: in huge pages on the CPU, or where they were; a copy on a GPU.
#pragma once

#include "base/mapped_buffer.h"
#include "base/thread_pool.h"
#include "device/device.h"
#include "model/weights.h"

#include <fovea/kernels/linear.h>

#include <memory>
#include <optional>
#include <vector>

namespace fovea {

struct PlacedWeights : ModelWeights {
  const float* inv_freq = nullptr;  // [rope_dim / 2] radians a token (model/rope.h)

  std::vector<float> host_inv_freq;
  Buffer memory;                           // what the views of a copy point into
  std::optional<MappedBuffer> huge_pages;  // of one on the host
};

// On the host: views of `weights`, whose memory the result keeps.
std::unique_ptr<PlacedWeights> place_weights(const ModelWeights& weights, const ModelConfig& config);
// On the host, in memory of their own: everything is copied into huge pages, each matrix from a cache line on, and `weights` may go.
// A step over the pages of a mapped file, of 4 KiB, takes up to a fifth longer. Null: the system gives no such memory.
std::unique_ptr<PlacedWeights> gather_weights(const ModelWeights& weights, const ModelConfig& config, ThreadPool& pool);
// In the memory of a device that is not the host: everything is copied, and `weights` may go. Quantised matrices of models with latent
// attention become bf16, in f32 numerics f32. Errors: resource_exhausted.
Result<std::unique_ptr<PlacedWeights>> copy_weights(const ModelWeights& weights, const ModelConfig& config, Numerics numerics,
                                                    Device& device, Stream& stream);

}  // namespace fovea
