#include "prefetch/plan.h"

#include "base/check.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <unordered_set>

namespace fovea::prefetch {
namespace {

auto rank(const Wanted& w) { return std::tuple(w.priority, w.guess, w.steps_ahead, w.layer); }

bool same_ticket(const PlannedTicket& t, const Wanted& w) {
  return t.owner == w.sequence && t.layer == w.layer && t.priority == w.priority && t.steps_ahead == w.steps_ahead &&
         t.guess == w.guess;
}

}  // namespace

std::vector<PlannedTicket> plan(std::span<const Wanted> wants, const Residency& residency, const PlanLimits& limits,
                                int64_t* skipped) {
  std::vector<size_t> order(wants.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return rank(wants[a]) < rank(wants[b]); });

  std::vector<PlannedTicket> tickets;
  std::vector<int32_t> unused(residency.unused, residency.unused + int64_t{residency.layers} * residency.heads);
  std::unordered_set<int64_t> taken;  // cells of slot_of
  int64_t left = limits.extents, left_out = 0;
  for (size_t at : order) {
    const Wanted& w = wants[at];
    FOVEA_CHECK(w.layer < residency.layers && w.head < residency.heads && w.block >= 0 && w.block < residency.blocks);
    const int64_t unit = int64_t{w.layer} * residency.heads + w.head;
    const int64_t cell = unit * residency.blocks + w.block;
    if (residency.slot_of[cell] != Residency::kAbsent || taken.contains(cell)) continue;
    const bool fits = !tickets.empty() && same_ticket(tickets.back(), w) &&
                      static_cast<int32_t>(tickets.back().items.size()) < limits.ticket_extents;
    const bool has_ticket = fits || static_cast<int32_t>(tickets.size()) < limits.tickets;
    if (left <= 0 || unused[unit] >= residency.max_unused_of_head || !has_ticket) {
      ++left_out;
      continue;
    }
    if (!fits) tickets.push_back({w.sequence, w.layer, w.priority, w.steps_ahead, w.guess, {}});
    tickets.back().items.push_back({w.head, w.block});
    taken.insert(cell);
    ++unused[unit];
    --left;
  }
  for (PlannedTicket& t : tickets) {
    std::sort(t.items.begin(), t.items.end(),
              [](const auto& a, const auto& b) { return std::tie(a.head, a.block) < std::tie(b.head, b.block); });
  }
  if (skipped) *skipped = left_out;
  return tickets;
}

}  // namespace fovea::prefetch
