#include "sparse/gsa/recency.h"

#include <algorithm>
#include <bit>
#include <numeric>

namespace fovea {

int32_t Recency::choose(int32_t blocks, int32_t k, int32_t init, int32_t local, int32_t* scratch, int32_t* units) {
  if (static_cast<int32_t>(chosen_.size()) < blocks) chosen_.resize(std::bit_ceil(static_cast<uint32_t>(blocks)), 0);
  const int32_t count = std::min(k, blocks);
  local = std::min(local, count);
  init = std::min(init, count - local);
  const int32_t by_score = count - init - local, others = blocks - init - local;
  // 10 (blocks - 1) times the score is an integer: ties are exact.
  const auto score = [&](int32_t b) { return int64_t{5} * (blocks - 1) * chosen_[b] + int64_t{9} * b; };
  std::iota(scratch, scratch + others, init);
  std::nth_element(scratch, scratch + by_score, scratch + others,
                   [&](int32_t a, int32_t b) { return score(a) != score(b) ? score(a) > score(b) : a < b; });
  std::sort(scratch, scratch + by_score);
  std::iota(units, units + init, 0);
  std::copy_n(scratch, by_score, units + init);
  std::iota(units + init + by_score, units + count, blocks - local);
  for (int32_t i = 0; i < count; ++i) ++chosen_[units[i]];
  return count;
}

}  // namespace fovea
