// What prefetch is asked for and what it answers with: extents, priorities, tickets, counters.
#pragma once

#include "store/store_key.h"

#include <fovea/request.h>
#include <fovea/types.h>

#include <compare>
#include <cstdint>

namespace fovea::prefetch {

// By the place of a request in the queue; low: a guess. A lower number goes first.
enum class Priority : int32_t { urgent = 0, high = 1, normal = 2, low = 3 };

// One extent of a store: a unit of a block, of the part that the engine serves. Two of the same key and unit are the same bytes,
// whoever asks.
struct Extent {
  StoreKey key;
  uint32_t unit = 0;
  int32_t tag = 0;  // the caller's own name of the block, handed back; not a part of what the extent is
  bool operator==(const Extent& other) const { return key == other.key && unit == other.unit; }
};

// A submission that was accepted. Numbers grow and are never used again.
using Ticket = StrongId<struct TicketTag, uint64_t>;

enum class TicketState : uint8_t {
  unknown,  // never given out, or cancelled, or collected already
  late,     // not all of it has come
  ready,    // all of it lies in memory
  failed,   // all of it has ended, and some of it could not be read
};

// Counted in extents, unless said otherwise.
struct Counters {
  int64_t submitted = 0;                             // asked for by tickets
  int64_t joined = 0;                                // of them on their way, or there, by another ticket
  int64_t busy = 0;                                  // tickets refused because too many were pending
  int64_t read = 0;                                  // that came, whole and verified
  int64_t failed = 0;                                // that could not be read
  int64_t hit = 0;                                   // prefetched and then used, without a wait
  int64_t late = 0;                                  // wanted by attention while they were queued or on their way
  int64_t wasted = 0;                                // read, and dropped or evicted before anything used them
  int64_t cancelled = 0;                             // dropped before they were read
  decltype(PrefetchStats::queue_time) queue_time{};  // tickets, by how long they were queued
  double queue_s = 0;                                // of them together
};

}  // namespace fovea::prefetch
