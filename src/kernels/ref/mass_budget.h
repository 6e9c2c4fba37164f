// How many blocks each KV head of a row keeps where budgets follow estimated mass: MassBudget of fovea/kernels/select.h, plainly.
#pragma once

#include <fovea/kernels/select.h>

#include <cstdint>
#include <vector>

namespace fovea::ref {

// The scores of a head's blocks, and what they are worth.
struct HeadScores {
  std::vector<float> scores;
  float levels_per_score = 0;
};

// [heads]
std::vector<int32_t> blocks_by_mass(const MassBudget& budget, const std::vector<HeadScores>& heads, int32_t k, int32_t init,
                                    int32_t local);

}  // namespace fovea::ref
