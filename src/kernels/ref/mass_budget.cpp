#include "kernels/ref/mass_budget.h"

#include <algorithm>
#include <numeric>

#include "kernels/common/mass_levels.h"
#include "kernels/ref/topk.h"

namespace fovea::ref {
namespace {

struct Head {
  std::vector<int32_t> levels;  // of its blocks
  uint64_t sum = 0;
  int32_t above = 0;  // levels of the sum

  uint64_t mass(int32_t block) const { return mass_of_level(levels[block]); }
};

Head levels_of(const HeadScores& of) {
  Head head;
  const float best = *std::max_element(of.scores.begin(), of.scores.end());
  for (const float score : of.scores) head.levels.push_back(mass_level(score, best, of.levels_per_score));
  for (const int32_t level : head.levels) head.sum += mass_of_level(level);
  head.above = levels_of_sum(head.sum);
  return head;
}

// Where n blocks are kept, those of windows are [0, init) and [blocks - local, blocks).
struct Windows {
  int32_t init, local;
  bool has(int32_t block, int32_t blocks) const { return block < init || block >= blocks - local; }
};

std::vector<int32_t> shares(const std::vector<Head>& heads, int32_t k, const Windows& windows) {
  const auto blocks = static_cast<int32_t>(heads[0].levels.size());
  const ShareBounds bounds = share_bounds(k, blocks, windows.init + windows.local);
  const auto kept = [&](const Head& head, int32_t levels) {
    int32_t n = 0;
    for (int32_t b = 0; b < blocks; ++b) n += windows.has(b, blocks) || head.levels[b] + head.above <= levels;
    return std::clamp(n, bounds.least, bounds.most);
  };
  const auto all = [&](int32_t levels) {
    int64_t n = 0;
    for (const Head& head : heads) n += kept(head, levels);
    return n;
  };
  const int64_t budget = std::ssize(heads) * int64_t{k};
  int32_t levels = -1;
  while (all(levels + 1) <= budget) ++levels;
  std::vector<int32_t> counts;
  int64_t left = budget - all(levels);
  for (const Head& head : heads) {
    const int32_t n = kept(head, levels);
    const auto more = static_cast<int32_t>(std::min<int64_t>(left, kept(head, levels + 1) - n));
    counts.push_back(n + more);
    left -= more;
  }
  return counts;
}

// Of `count` blocks, how many hold the share.
int32_t holding(const Head& head, const HeadScores& of, int32_t count, int32_t top_p_1e4, const Windows& windows) {
  const auto blocks = static_cast<int32_t>(head.levels.size());
  std::vector<int32_t> order;
  uint64_t mass = 0;
  for (int32_t b = 0; b < blocks; ++b) {
    if (windows.has(b, blocks))
      mass += head.mass(b);
    else
      order.push_back(b);
  }
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return of.scores[a] > of.scores[b]; });
  int32_t n = windows.init + windows.local;
  for (; n < count && !holds_share(mass, head.sum, top_p_1e4); ++n) mass += head.mass(order[n - windows.init - windows.local]);
  return n;
}

}  // namespace

std::vector<int32_t> blocks_by_mass(const MassBudget& budget, const std::vector<HeadScores>& of, int32_t k, int32_t init,
                                    int32_t local) {
  const auto blocks = static_cast<int32_t>(of[0].scores.size());
  std::vector<int32_t> counts(of.size(), std::min(k, blocks));
  if (blocks == 0) return counts;
  Windows windows;
  windows.local = std::min(local, counts[0]);
  windows.init = std::min(init, counts[0] - windows.local);
  std::vector<Head> heads;
  for (const HeadScores& h : of) heads.push_back(levels_of(h));
  if (budget.split && k < blocks) counts = shares(heads, k, windows);
  for (size_t h = 0; h < heads.size() && budget.top_p_1e4 > 0; ++h)
    counts[h] = holding(heads[h], of[h], counts[h], budget.top_p_1e4, windows);
  return counts;
}

}  // namespace fovea::ref
