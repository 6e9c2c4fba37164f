#include "kernels/cpu/select/mass_shares.h"

#include <algorithm>
#include <bit>

namespace fovea::cpu {
namespace {

float score_of(int32_t rank) {
  const int32_t bits = ~rank;
  return std::bit_cast<float>(bits < 0 ? bits ^ 0x7fffffff : bits);
}

}  // namespace

void MassShares::prepare(int64_t rows, int64_t kv_heads) {
  stride_ = kv_heads;
  heads_.resize(static_cast<size_t>(rows * kv_heads));
}

void MassShares::measure(int64_t row, int head, const int32_t* ranks, float levels_per_score, const BlockWindows& windows) {
  Head& h = heads_[row * stride_ + head];
  const float best = score_of(*std::min_element(ranks, ranks + windows.blocks));
  std::fill(std::begin(h.others), std::end(h.others), 0);
  h.windows_mass = h.sum = 0;
  for (int32_t b = 0; b < windows.blocks; ++b) {
    const int32_t level = mass_level(score_of(ranks[b]), best, levels_per_score);
    if (b < windows.init || b >= windows.end())
      h.windows_mass += mass_of_level(level);
    else
      ++h.others[level];
  }
  h.sum = h.windows_mass;
  for (int32_t l = 0; l < kMassLevels; ++l) h.sum += h.others[l] * mass_of_level(l);
  for (int32_t l = 1; l < kMassLevels; ++l) h.others[l] += h.others[l - 1];
  h.above = levels_of_sum(h.sum);
}

// Whose share is so many levels below all or less.
int64_t MassShares::Head::others_within(int32_t share) const {
  return share < above ? 0 : others[std::min(share - above, kMassLevels - 1)];
}

void MassShares::share(int64_t row, const MassBudget& budget, int kv_heads, int32_t k, const BlockWindows& windows) {
  Head* heads = &heads_[row * stride_];
  const int32_t fixed = windows.init + windows.local;
  for (int h = 0; h < kv_heads; ++h) heads[h].blocks = windows.count;
  if (budget.split && !windows.takes_all()) {
    const ShareBounds bounds = share_bounds(k, windows.blocks, fixed);
    const auto kept = [&](const Head& head, int32_t share) {
      return static_cast<int32_t>(std::clamp<int64_t>(fixed + head.others_within(share), bounds.least, bounds.most));
    };
    const auto all = [&](int32_t share) {
      int64_t n = 0;
      for (int h = 0; h < kv_heads; ++h) n += kept(heads[h], share);
      return n;
    };
    const int64_t most = int64_t{kv_heads} * k;
    int32_t within = -1, beyond = kMassLevels;
    for (int h = 0; h < kv_heads; ++h) beyond = std::max(beyond, heads[h].above + kMassLevels);
    while (beyond - within > 1) {
      const int32_t middle = (within + beyond) / 2;
      (all(middle) <= most ? within : beyond) = middle;
    }
    int64_t left = most - all(within);
    for (int h = 0; h < kv_heads; ++h) {
      const int32_t n = kept(heads[h], within);
      const auto more = static_cast<int32_t>(std::min<int64_t>(left, kept(heads[h], within + 1) - n));
      heads[h].blocks = n + more;
      left -= more;
    }
  }
  for (int h = 0; h < kv_heads && budget.top_p_1e4 > 0; ++h)
    heads[h].blocks = holding(heads[h], heads[h].blocks, budget.top_p_1e4, fixed);
}

// Blocks of a level are alike.
int32_t MassShares::holding(const Head& head, int32_t count, int32_t top_p_1e4, int32_t fixed) {
  const uint64_t wanted = (head.sum * static_cast<uint64_t>(top_p_1e4) + 9999) / 10000;
  uint64_t mass = head.windows_mass;
  int64_t n = fixed;
  for (int32_t l = 0; l < kMassLevels && n < count && mass < wanted; ++l) {
    const uint64_t some = head.others[l] - (l > 0 ? head.others[l - 1] : 0), each = mass_of_level(l);
    const uint64_t take = each > 0 ? std::min(some, (wanted - mass + each - 1) / each) : some;
    n += static_cast<int64_t>(take);
    mass += take * each;
  }
  return static_cast<int32_t>(std::min<int64_t>(n, count));
}

}  // namespace fovea::cpu
