// How absorbed attention is cut: pure choices from plain numbers.
#pragma once

#include <fovea/kernels/mla.h>

#include <cstdint>

namespace fovea::cuda::mla {

// How the keys of a row are cut. Follows from their number alone, so that neither the batch nor the launch changes a bit.
struct SplitRule {
  int32_t least_keys = 512;  // of a split: a shorter one costs more to put together than it gains
  int32_t max_splits = 32;

  constexpr int32_t split_keys(int64_t keys) const {
    const int64_t share = (keys + max_splits - 1) / max_splits;
    const int64_t whole = (share + kTileKeys - 1) / kTileKeys * kTileKeys;
    return static_cast<int32_t>(whole < least_keys ? least_keys : whole);
  }
  constexpr int32_t splits(int64_t keys) const {
    const int32_t each = split_keys(keys);
    return static_cast<int32_t>((keys + each - 1) / each);
  }

  static constexpr int32_t kTileKeys = 64;  // splits begin at multiples of it
};

// The most keys that a row of the call may walk, where no sequence is longer than max_len.
int64_t keys_at_most(const MlaAttendParams& p, int64_t max_len);

}  // namespace fovea::cuda::mla
