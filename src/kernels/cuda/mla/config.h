// How absorbed attention is cut: pure choices from plain numbers.
#pragma once

#include <fovea/kernels/mla.h>

#include <cstdint>

namespace fovea::cuda::mla {

// What the kernel for Hopper is made for. Heads come 64 at a time.
inline constexpr int32_t kWgmmaHeads = 64, kWgmmaLatent = 512, kWgmmaRope = 64;

// How the keys of a row are cut. Follows from their number alone, so that neither the batch nor the launch changes a bit.
struct SplitRule {
  int32_t least_keys = 256;  // of a split: a shorter one costs more to put together than it gains
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

// Of the kernels. On tensor cores, which are through 1,024 keys in some 20 us, a split costs a read and a write of 128 KiB.
inline constexpr SplitRule kScalarSplits{};
inline constexpr SplitRule kWgmmaSplits{.least_keys = 1024};

// Whether tensor cores may take it: sizes of DeepSeek's models, and heads that fill some of 64 rows.
bool suits_wgmma(const MlaShape& shape, int32_t heads);
// Whether so many rows fill a GPU, so that a thread block may take all splits of its row. Heads come 8 at a time there.
bool walks_splits(int32_t rows, int32_t heads);

// The most keys that a row of the call may walk, where no sequence is longer than max_len.
int64_t keys_at_most(const MlaAttendParams& p, int64_t max_len);

}  // namespace fovea::cuda::mla
