// Paged decode attention on a GPU (AttentionParams): one launch for every 256 rows, split over keys and
// merged again. q_indptr and seq_len are read while the kernel before a launch may still run: no kernel
// writes them.
//
// Scores, softmax and sums are float32. With bf16, f16 or fp8 KV in layout hnd, q and the weights enter the
// tensor cores as sums of two 16-bit floats each (f16 for fp8 KV: |q| <= 65504): results differ from
// float32's by about 2^-16. keys_read counts a key once for each list that selects it: once for all heads of
// a KV head, or once for each query head where the Selection has lists for those. K and V start at multiples
// of 16 bytes, and so do their heads and blocks.
#pragma once

#include <fovea/kernels/attention.h>
#include <fovea/kernels/limits.h>
#include <fovea/status.h>

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "device/device.h"
#include "kernels/cuda/decode/config.h"
#include "kernels/cuda/launch.h"

namespace fovea::cuda {

namespace decode {
struct Args;
}

void merge_partitions(const MergePartitionsParams& p, cudaStream_t stream);

class Decode {
 public:
  // Errors: resource_exhausted; unsupported: a head_dim that is no multiple of 16 in [32, 256], or a device
  // that cannot run the kernels.
  Status prepare(const OpsLimits& limits, Device& device);

  // Calls of one object are on one stream: they share its scratch.
  void run(const AttentionParams& p, const Queue& queue);
  void run(const PartitionedAttentionParams& p, const Queue& queue);

  // How run() would launch it.
  std::string describe(const AttentionParams& p) const;

 private:
  struct Kernel {
    DType dtype;
    decode::Shape shape;
    const void* function;
    size_t shared_bytes;
    int grid;                      // CTAs that the device holds at once
    decode::ClusterRoom clusters;  // of Path::cluster: likewise
  };

  Status measure_device();
  Status prepare_splits(Device& device);
  decode::Shape choose(const AttentionParams& p) const;
  // Fills in the rest of `args` and launches.
  void launch(decode::Args& args, const AttentionParams& p, const decode::Shape& shape, const Queue& queue) const;
  const Kernel& find(DType dtype, const decode::Shape& shape) const;
  const Kernel* look_up(DType dtype, const decode::Shape& shape) const;  // null: there is none
  int64_t max_len(const AttentionParams& p) const { return p.max_len > 0 ? p.max_len : limits_.max_len; }

  OpsLimits limits_;
  decode::SplitRule rule_;
  std::vector<Kernel> kernels_;
  int multiprocessors_ = 0;
  size_t shared_bytes_ = 0, most_shared_bytes_ = 0;  // of a multiprocessor; of a CTA
  Buffer partial_out_, partial_softmax_, done_;
  Buffer split_out_, split_softmax_;  // of Path::split
};

}  // namespace fovea::cuda
