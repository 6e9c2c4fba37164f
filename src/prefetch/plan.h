// What to prefetch, decided from plain numbers: wants and where extents lie now -> tickets, in the order of submission. Pure.
#pragma once

#include "prefetch/ticket.h"

#include <cstdint>
#include <span>
#include <vector>

namespace fovea::prefetch {

// A block that a sequence will probably read in one layer and KV head.
struct Wanted {
  SequenceId sequence;
  int32_t layer = 0;
  int32_t head = 0;
  int32_t block = 0;  // BlockId
  Priority priority = Priority::low;
  int32_t steps_ahead = 1;  // it is expected to be read within so many steps
  bool guess = false;       // else it is known to be read
};

// Where extents lie. Arrays are [layers, heads, blocks] and [layers, heads].
struct Residency {
  static constexpr int32_t kAbsent = -1;
  int32_t layers = 0, heads = 0, blocks = 0;
  const int32_t* slot_of = nullptr;  // kAbsent: neither there nor on its way
  const int32_t* unused = nullptr;   // prefetched into this layer and head, and not used yet
  int32_t max_unused_of_head = 0;    // of those, most: what is guessed may not drive out what is used
};

struct PlanLimits {
  int64_t extents = 0;         // most in all
  int32_t tickets = 0;         // most
  int32_t ticket_extents = 0;  // most in one
};

struct PlannedTicket {
  SequenceId owner;
  int32_t layer = 0;
  Priority priority = Priority::low;
  int32_t steps_ahead = 1;
  bool guess = false;
  struct Item {
    int32_t head, block;
    bool operator==(const Item&) const = default;
  };
  std::vector<Item> items;  // ascending; 1 to ticket_extents
};

// Tickets of one sequence, layer, priority and distance each, of guesses or of none, in the order (priority, guesses last, steps
// ahead, layer, place among the wants).
// An extent is in one ticket: the first. What lies here already, or would pass a bound, is in none. `skipped` (may be null): what
// was left out for a bound, extents.
std::vector<PlannedTicket> plan(std::span<const Wanted> wants, const Residency& residency, const PlanLimits& limits,
                                int64_t* skipped);

}  // namespace fovea::prefetch
