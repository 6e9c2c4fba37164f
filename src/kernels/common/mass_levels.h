// Estimated shares of attention in integers, alike on every device: what MassBudget (fovea/kernels/select.h) is defined by.
//
// A level is 1/64 of an octave below the best of a head's blocks: level l has mass 2^30 * 2^(-l / 64).
#pragma once

#include <fovea/kernels/cache.h>

#include <cstdint>

namespace fovea {

inline constexpr int32_t kMassLevels = 2048;  // the last 128 have no mass

// What a difference of scores is worth in levels, for queries of so much length together.
float levels_per_score(const HashCodec& codec, float softmax_scale, double lengths, int queries);

// Of a block's score; the best of its head's is level 0. A NaN (both are infinite) too.
inline int32_t mass_level(float score, float best, float per_score) {
  const float below = (best - score) * per_score;
  return below >= kMassLevels - 1 ? kMassLevels - 1 : below > 0 ? static_cast<int32_t>(below) : 0;
}

uint64_t mass_of_level(int32_t level);

// floor(64 * log2(sum / 2^30)), by the table of masses: how many levels all of a head's blocks lie above its best. sum >= 2^30.
int32_t levels_of_sum(uint64_t sum);

// The bounds of a list that is shared out; `fixed`: blocks of it that windows give.
struct ShareBounds {
  int32_t least, most;
};
ShareBounds share_bounds(int32_t k, int32_t blocks, int32_t fixed);

// Whether so much of the sum is the share that a head may stop at.
inline bool holds_share(uint64_t mass, uint64_t sum, int32_t top_p_1e4) {
  return mass * 10000 >= sum * static_cast<uint64_t>(top_p_1e4);  // 2^30 * 2^20 blocks * 10^4 < 2^64
}

}  // namespace fovea
