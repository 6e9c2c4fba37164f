// Small copies between pinned host memory and a GPU by one kernel, which reads and writes host memory itself: what lies behind it in the
// stream begins some microseconds sooner than behind copy engines, which have to be waited for and told.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace fovea {

// `words` of 4 bytes; both addresses are multiples of 4.
struct WordsCopy {
  uint32_t* to;
  const uint32_t* from;
  uint32_t words;
};

inline constexpr size_t kWordCopiesMax = 64;

// At most kWordCopiesMax.
cudaError_t copy_words(std::span<const WordsCopy> copies, cudaStream_t stream);

}  // namespace fovea
