// Summaries of blocks from the keys in the cache, and codes for codecs that the fused cache write does not keep.
#pragma once

#include <fovea/kernels/limits.h>
#include <fovea/kernels/select.h>
#include <fovea/status.h>

#include <cstdint>
#include <vector>

#include "base/thread_pool.h"

namespace fovea::cpu {

// Gives what ref::block_summaries gives, bit for bit (the sign of a zero in a box apart), on any number of threads.
class BlockSummaries {
 public:
  // Sizes the scratch, once.
  void prepare(const OpsLimits& limits) { last_.assign(static_cast<size_t>(limits.max_rows), 0); }

  // At most limits.max_rows tokens; head_dim a multiple of 16 up to 256. Allocates nothing.
  void run(const BlockSummariesParams& p, ThreadPool& pool);

 private:
  std::vector<int64_t> last_;  // the last slot written of each block touched, ascending
};

// Gives what ref::encode_codes gives, bit for bit. head_dim as above.
void encode_codes(const EncodeCodesParams& p, ThreadPool& pool);

}  // namespace fovea::cpu
