// How the cache write is launched: pure choices from plain numbers.
#pragma once

#include <fovea/kernels/cache.h>

#include <cstdint>
#include <string>

namespace fovea::cuda::kv_writing {

inline constexpr int kWarps = 4;  // of a CTA, each with a head vector of its own

struct WriteShape {
  int32_t regs = 4;     // elements of a lane: 2, 4 or 8; head_dim and the codec's n fit 32 times that
  int64_t vectors = 0;  // of q and of k (with v): a warp each
  int64_t ctas = 0;

  std::string describe() const;
};

WriteShape choose_shape(const KvWriteParams& p);

}  // namespace fovea::cuda::kv_writing
