// How the DSA indexer's choice is launched: pure choices from plain numbers.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/ops/dsa.h"
#include "kernels/ops/limits.h"

namespace fovea::cuda::dsa {

inline constexpr int kTileKeys = 128;  // scored at once: a list has room for so many when they come

// The lists of candidates in scratch: every row being scored has one for each range of its keys.
struct Scratch {
  int32_t lists = 0;
  int32_t capacity = 0;  // candidates of a list: it is cut to topk when less than a tile's room is left
  int64_t list_bytes() const { return capacity * int64_t{sizeof(uint64_t)}; }
};

// Does not grow with the length of a context.
Scratch choose_scratch(const OpsLimits& limits, int64_t budget = int64_t{64} << 20);

// What one launch scores: `rows` rows, `group` at a time, the keys of each in `splits` ranges.
struct Pass {
  int32_t rows = 0;
  int32_t splits = 1;
  int32_t groups = 0;

  std::string describe() const;
};

// Rows that are left of a call; `ctas`: how many occupy the device.
Pass choose_pass(int32_t rows, int64_t max_len, int32_t group, int32_t ctas, const Scratch& scratch);

}  // namespace fovea::cuda::dsa
