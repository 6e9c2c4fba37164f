// The prefetch engine as a pure state machine: no thread, no clock, no bytes. engine.h puts a thread and a store around it.
//
// A ticket is a list of extents that one sequence will want. Tickets wait in a queue, begin in the order of (level, due time,
// number), and end when all their extents have. Extents are flights of their own: one flight an extent, however many tickets
// hold it, so a second ticket joins what the first one queued or began, and whichever begins first reads it. What has landed is
// kept for tickets that have begun: one that has not cannot be sure to end, and would hold room that others need to.
//
// Order. A ticket's level is its priority; LOW gains a level for every `aging_s` queued, never above NORMAL. Its due time is its
// deadline, but neither before its submission nor later than 2 * aging_s after it. So no ticket waits behind one of the same
// level that was submitted more than 2 * aging_s after it, and LOW ones starve only where URGENT and HIGH ones never end.
// Bounds. At most max_pending tickets that are not collected (beyond: busy); at most `landings` extents in flight or landed and not
// collected; at most max_unused extents on their way or prefetched that nothing has used. The first ticket in order waits for
// room, and those behind it with it: none is overtaken because it is large. While attention waits for extents (demand), one batch
// of LOW tickets is in flight at most.
//
// All memory is taken by the constructor, but for the counters of an owner. Times are seconds of one clock.
#pragma once

#include "prefetch/ticket.h"

#include <fovea/status.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace fovea::prefetch {

struct CoreLimits {
  static constexpr int32_t kMaxTicketExtents = 256;
  int32_t max_pending = 64;   // tickets
  int64_t max_unused = 1000;  // extents
  int32_t landings = 1024;    // extents
  double aging_s = 0.050;

  int32_t ticket_extents() const {  // the most that one ticket may name: it can always begin when all else has ended
    return static_cast<int32_t>(std::min<int64_t>({kMaxTicketExtents, max_unused, landings}));
  }
};

class EngineCore {
 public:
  // Who asks for what attention wants within a deadline. That is no prefetch: it is not counted.
  static constexpr SequenceId kDemand{~uint64_t{0}};

  explicit EngineCore(const CoreLimits& limits);

  // Errors: busy (max_pending tickets are pending); invalid_argument (no extents, or more than ticket_extents()).
  Result<Ticket> submit(SequenceId owner, std::span<const Extent> extents, Priority priority, double deadline_s, double now_s);

  // An extent to be read into landing place `landing`.
  struct Start {
    Extent extent;
    int32_t landing;
    int32_t flight;  // for complete()
  };
  // The next batch to begin: the first ticket's extents that nobody reads yet. Empty: nothing may begin now. Each flight must be
  // completed, whatever becomes of its tickets.
  std::span<const Start> poll(double now_s);
  int32_t started_level() const { return started_level_; }  // of the ticket that poll() began last, aged
  void complete(int32_t flight, bool ok);

  TicketState state(Ticket ticket) const;
  // Ends the ticket of which state() is not late. The landings of its extents that came (not those that another ticket or attention
  // has taken) are the caller's until it calls free_collected(), before the next collect(). What was collected counts as unused
  // until settle().
  std::span<const Start> collect(Ticket ticket);
  void free_collected();
  // Of an owner's collected extents: how many attention has used for the first time, and how many were dropped or evicted before
  // it did.
  void settle(SequenceId owner, int64_t used, int64_t wasted);
  // Drops a ticket, or all of a sequence: on abort, finish and preemption. What nobody else holds is not read; I/O under way
  // ends and is discarded. Unknown ones are fine.
  void cancel(Ticket ticket);
  void cancel_owner(SequenceId owner);

  // Attention wants the extent now. absent: the caller reads it. taken: likewise, and a queued ticket will not. landed: copy it
  // from its landing, then end_claim(). flying: wait until landed() says so, copy where it landed, then end_claim().
  enum class Claim : uint8_t { absent, taken, landed, flying };
  struct Claimed {
    Claim claim = Claim::absent;
    int32_t flight = -1, landing = -1;
  };
  Claimed claim(const Extent& extent);
  enum class Landed : uint8_t { no, yes, failed };
  Landed landed(int32_t flight) const;
  bool has_landed(const Extent& extent) const;
  // Nothing flies, and the first ticket finds no room: none will, until something is collected, claimed or settled.
  bool is_stuck(double now_s) const;
  void end_claim(int32_t flight);
  void demand_begin() { ++demands_; }
  void demand_end() { --demands_; }

  const Counters& counters() const { return counters_; }
  // Those of one owner, who begins anew: what a flight comes to is counted for whoever asked for it first.
  Counters take_counters(SequenceId owner);
  int32_t pending() const { return pending_; }
  int64_t unused() const { return unused_; }
  int64_t unused_room() const { return limits_.max_unused - unused_; }
  int32_t landings_free() const { return static_cast<int32_t>(free_landings_.size()); }
  const CoreLimits& limits() const { return limits_; }
  // Every invariant of the tables; aborts where one is broken (tests).
  void check() const;

 private:
  enum class Phase : uint8_t { free, queued, flying, landed, failed, taken };
  struct Flight {
    Extent extent;
    SequenceId owner;  // who asked first
    Phase phase = Phase::free;
    int32_t holders = 0;   // tickets and claims
    int32_t begun = 0;     // of them claims, and tickets that have begun
    int32_t landing = -1;  // while flying and landed
    int32_t batch = -1;    // while flying
    int32_t next = -1;     // in its bucket, or in the free list
  };
  struct Task {
    Ticket ticket;  // 0: free
    SequenceId owner;
    Priority priority = Priority::low;
    double submitted_s = 0, due_s = 0;
    bool begun = false;
    std::vector<int32_t> flights;  // no two alike
    std::vector<int32_t> tags;     // [flights] this ticket's own
  };
  struct Batch {
    int32_t left = 0;  // flights that are not complete; 0: free
    bool low = false;
  };

  void count(SequenceId owner, int64_t Counters::*what, int64_t n = 1);
  const Task* find(Ticket ticket) const;
  Task* find(Ticket ticket) { return const_cast<Task*>(std::as_const(*this).find(ticket)); }
  int32_t level(const Task& task, double now_s) const;
  const Task* first(double now_s) const;
  int64_t to_read(const Task& task) const;
  bool has_room(int64_t reads) const { return reads <= landings_free() && reads <= unused_room(); }
  void begin(Task& task, double now_s);
  TicketState state(const Task& task) const;
  void end(Task& task);
  void release(int32_t flight, bool begun);
  void settle_flight(int32_t flight);
  void discard_landing(Flight& flight);

  size_t bucket_of(const Extent& extent) const;
  int32_t lookup(const Extent& extent) const;
  int32_t insert(const Extent& extent, SequenceId owner);
  void unlink(int32_t flight);

  CoreLimits limits_;
  uint64_t next_ticket_ = 1;
  int32_t pending_ = 0;
  int64_t unused_ = 0;
  int32_t demands_ = 0;
  int32_t low_batches_ = 0;
  int32_t started_level_ = 0;
  std::vector<Task> tasks_;       // [max_pending]
  std::vector<Flight> flights_;   // [max_pending * ticket_extents() + landings]: those of tickets, and orphans that still fly
  std::vector<int32_t> buckets_;  // first flight, -1: empty
  int32_t free_flight_ = -1;
  std::vector<int32_t> free_landings_;
  std::vector<Batch> batches_;    // [landings]
  std::vector<Start> starts_;     // what poll() gives out
  std::vector<Start> collected_;  // what collect() gives out
  Counters counters_;
  std::unordered_map<SequenceId, Counters> of_owner_;
};

}  // namespace fovea::prefetch
