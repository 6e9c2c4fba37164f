// Which blocks of a row are kept: the windows, then the rest by score. One definition for scores of every type.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <type_traits>
#include <vector>

#include "base/check.h"

namespace fovea::ref {

// What a score counts as: itself, and -inf if it is NaN, so that there is an order.
template <typename Score>
Score rank_of(Score score) {
  if constexpr (std::is_floating_point_v<Score>) {
    if (std::isnan(score)) return -std::numeric_limits<Score>::infinity();
  }
  return score;
}

// Which of `blocks` blocks to keep: exactly min(k, blocks), ascending. The windows count inside k: the
// `local` last blocks, then the `init` first, then the rest by score, ties to the lower index. Where the
// windows alone exceed k, the latest blocks go first, then the earliest: a row's own key is in the last
// block. Returns the count.
template <typename Score>
int select_topk(const Score* scores, int blocks, int k, int init, int local, int32_t* units) {
  FOVEA_CHECK(blocks >= 0 && k >= 0 && init >= 0 && local >= 0);
  const int count = std::min(k, blocks);
  if (count == blocks) {
    std::iota(units, units + blocks, 0);
    return blocks;
  }
  local = std::min(local, count);
  init = std::min(init, count - local);
  std::vector<int32_t> middle(blocks - init - local);
  std::iota(middle.begin(), middle.end(), init);
  std::stable_sort(middle.begin(), middle.end(), [&](int32_t a, int32_t b) { return rank_of(scores[a]) > rank_of(scores[b]); });
  const int by_score = count - init - local;
  std::iota(units, units + init, 0);
  std::copy_n(middle.begin(), by_score, units + init);
  std::sort(units + init, units + init + by_score);
  std::iota(units + init + by_score, units + count, blocks - local);
  return count;
}

// The `most` blocks (or as many as are left) next in score behind the k that select_topk() keeps, ascending; none where it keeps
// none by score. Returns the count.
template <typename Score>
int select_next(const Score* scores, int blocks, int k, int init, int local, int most, int32_t* units) {
  const int count = std::min(k, blocks);
  local = std::min(local, count);
  init = std::min(init, count - local);
  const int by_score = count - init - local;
  if (count == blocks || by_score == 0) return 0;
  std::vector<int32_t> middle(blocks - init - local);
  std::iota(middle.begin(), middle.end(), init);
  std::stable_sort(middle.begin(), middle.end(), [&](int32_t a, int32_t b) { return rank_of(scores[a]) > rank_of(scores[b]); });
  const int next = std::min<int>(most, static_cast<int>(middle.size()) - by_score);
  std::copy_n(middle.begin() + by_score, next, units);
  std::sort(units, units + next);
  return next;
}

}  // namespace fovea::ref
