// Segments of rows: sequences of a batch, or the rows that share a list.
#pragma once

#include <cstdint>

namespace fovea::cuda {

// The i with indptr[i] <= x < indptr[i + 1]. In decode it mostly is x itself.
__device__ inline int32_t segment_of(const int32_t* indptr, int32_t segments, int32_t x) {
  if (x < segments && indptr[x] <= x && x < indptr[x + 1]) return x;
  int32_t low = 0, high = segments - 1;
  while (low < high) {
    const int32_t middle = (low + high) / 2;
    if (indptr[middle + 1] <= x) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace fovea::cuda
