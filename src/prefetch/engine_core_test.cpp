#include "prefetch/engine_core.h"

#include <gtest/gtest.h>

#include <vector>

namespace fovea::prefetch {
namespace {

constexpr double kNever = 1e30;

Extent extent(int32_t number) {
  Extent e;
  e.key.bytes[0] = static_cast<uint8_t>(number / 4);
  e.unit = number % 4;
  e.tag = number;
  return e;
}

std::vector<Extent> extents(std::vector<int32_t> numbers) {
  std::vector<Extent> out;
  for (int32_t n : numbers) out.push_back(extent(n));
  return out;
}

class EngineCoreTest : public testing::Test {
 protected:
  Ticket submit(std::vector<int32_t> numbers, Priority priority = Priority::normal, double deadline_s = kNever,
                uint64_t owner = 1) {
    auto ticket = core.submit(SequenceId{owner}, extents(numbers), priority, deadline_s, now);
    EXPECT_TRUE(ticket.ok()) << ticket.status().message();
    core.check();
    return ticket.ok() ? *ticket : Ticket{};
  }
  // Tags of the batch that begins now, and their flights.
  std::vector<int32_t> poll() {
    std::vector<int32_t> tags;
    flights.clear();
    for (const auto& start : core.poll(now)) {
      tags.push_back(start.extent.tag);
      flights.push_back(start.flight);
    }
    core.check();
    return tags;
  }
  void complete(bool ok = true) {
    for (int32_t f : flights) core.complete(f, ok);
    flights.clear();
    core.check();
  }
  std::vector<int32_t> collect(Ticket ticket) {
    std::vector<int32_t> tags;
    for (const auto& start : core.collect(ticket)) tags.push_back(start.extent.tag);
    core.free_collected();
    core.check();
    return tags;
  }

  using Tags = std::vector<int32_t>;
  double now = 0;
  EngineCore core{CoreLimits{.max_pending = 4, .max_unused = 100, .landings = 8}};
  std::vector<int32_t> flights;
};

TEST_F(EngineCoreTest, OrderIsPriorityThenDeadlineThenNumber) {
  submit({1}, Priority::normal, 0.02);
  submit({2}, Priority::normal, 0.01);
  submit({3}, Priority::urgent);
  submit({4}, Priority::normal, 0.01);
  EXPECT_EQ(poll(), Tags{3});
  EXPECT_EQ(poll(), Tags{2});
  EXPECT_EQ(poll(), Tags{4});
  EXPECT_EQ(poll(), Tags{1});
  EXPECT_EQ(poll(), Tags{});
}

TEST_F(EngineCoreTest, LowGainsALevelAndNeverPassesNormal) {
  submit({1}, Priority::low);
  now = 0.049;
  submit({2}, Priority::normal);
  EXPECT_EQ(poll(), Tags{2});
  submit({3}, Priority::normal);
  submit({4}, Priority::high);
  now = 0.051;
  EXPECT_EQ(poll(), Tags{4}) << "above NORMAL";
  EXPECT_EQ(poll(), Tags{1}) << "aged to NORMAL, and submitted first";
  EXPECT_EQ(poll(), Tags{3});
}

TEST_F(EngineCoreTest, AnEarlierTicketIsNotStarvedByDeadlines) {
  submit({1}, Priority::normal);
  now = 0.09;
  submit({2}, Priority::normal, 0.095);
  EXPECT_EQ(poll(), Tags{2}) << "within 100 ms a deadline goes before";
  now = 0.11;
  submit({3}, Priority::normal, 0);  // a deadline that has passed is no advantage
  EXPECT_EQ(poll(), Tags{1});
}

TEST_F(EngineCoreTest, MorePendingTicketsAreBusy) {
  const Ticket first = submit({0});
  for (int32_t i = 1; i < 4; ++i) submit({i});
  auto refused = core.submit(SequenceId{1}, extents({9}), Priority::urgent, kNever, now);
  EXPECT_EQ(refused.status().code(), StatusCode::busy);
  EXPECT_EQ(core.counters().busy, 1);
  EXPECT_EQ(poll(), Tags{0});
  complete();
  EXPECT_EQ(collect(first), Tags{0});
  submit({9});
}

TEST_F(EngineCoreTest, TicketsThatCouldNeverBeginAreRefused) {
  for (int32_t count : {0, 9})
    EXPECT_EQ(core.submit(SequenceId{1}, std::vector<Extent>(count, extent(1)), Priority::low, kNever, now).status().code(),
              StatusCode::invalid_argument);
}

TEST_F(EngineCoreTest, ATicketEndsWhenItsExtentsHave) {
  const Ticket t = submit({1, 2, 2});
  EXPECT_EQ(core.state(t), TicketState::late);
  EXPECT_EQ(poll(), (Tags{1, 2})) << "named twice, read once";
  core.complete(flights[0], true);
  EXPECT_EQ(core.state(t), TicketState::late);
  core.complete(flights[1], false);
  EXPECT_EQ(core.state(t), TicketState::failed);
  EXPECT_EQ(collect(t), Tags{1});
  EXPECT_EQ(core.state(t), TicketState::unknown);
  EXPECT_EQ(core.state(Ticket{77}), TicketState::unknown);
  EXPECT_EQ(core.state(Ticket{0}), TicketState::unknown);
}

TEST_F(EngineCoreTest, OneFlightAnExtent) {
  const Ticket a = submit({1, 2}, Priority::low), b = submit({2, 3}, Priority::urgent);
  EXPECT_EQ(core.counters().joined, 1);
  EXPECT_EQ(poll(), (Tags{2, 3})) << "the more urgent ticket reads what it shares";
  complete();
  EXPECT_EQ(collect(b), (Tags{2, 3}));
  EXPECT_EQ(poll(), Tags{1});
  complete();
  EXPECT_EQ(collect(a), Tags{1}) << "2 was handed to b";
}

TEST_F(EngineCoreTest, WhatWasCollectedCanBeAskedForAgain) {
  const Ticket a = submit({1});
  const Ticket b = submit({1});
  poll();
  complete();
  EXPECT_EQ(collect(a), Tags{1});
  const Ticket c = submit({1});
  EXPECT_EQ(core.state(b), TicketState::ready) << "what has ended stays so";
  EXPECT_EQ(poll(), Tags{1});
  EXPECT_EQ(core.state(c), TicketState::late);
  EXPECT_EQ(collect(b), Tags{});
}

TEST_F(EngineCoreTest, CancelDropsWhatNobodyElseHolds) {
  const Ticket a = submit({1, 2});
  submit({2, 3}, Priority::normal, kNever, 2);
  core.cancel(a);
  core.cancel(a);
  EXPECT_EQ(core.state(a), TicketState::unknown);
  EXPECT_EQ(core.counters().cancelled, 1);
  EXPECT_EQ(poll(), (Tags{2, 3}));
  core.cancel_owner(SequenceId{2});
  EXPECT_EQ(core.pending(), 0);
  EXPECT_EQ(core.unused(), 2) << "I/O under way keeps its landings";
  const auto under_way = flights;
  const Ticket c = submit({3});
  EXPECT_EQ(poll(), Tags{}) << "begun, though others read all of it";
  flights = under_way;
  complete();
  EXPECT_EQ(core.counters().wasted, 1);
  EXPECT_EQ(core.state(c), TicketState::ready) << "it joined what was under way for another";
  EXPECT_EQ(collect(c), Tags{3});
  EXPECT_EQ(core.landings_free(), 8);
}

// Else two tickets that have not begun could each hold the room that the other needs.
TEST_F(EngineCoreTest, WhatLandedIsNotKeptForATicketThatHasNotBegun) {
  const Ticket a = submit({1}, Priority::urgent);
  submit({1, 2}, Priority::low);
  EXPECT_EQ(poll(), Tags{1});
  core.cancel(a);
  complete();
  EXPECT_EQ(core.landings_free(), 8);
  EXPECT_EQ(poll(), (Tags{1, 2}));
}

TEST_F(EngineCoreTest, LargeTicketsAreNotOvertaken) {
  const Ticket first = submit({0, 1, 2, 3, 4});
  submit({5, 6, 7, 8, 9});
  submit({10});
  EXPECT_EQ(poll().size(), 5u);
  const auto running = flights;
  EXPECT_EQ(poll(), Tags{}) << "5 of 8 landings are taken, and 10 waits behind";
  flights = running;
  complete();
  EXPECT_EQ(poll(), Tags{}) << "landed is not collected";
  collect(first);
  EXPECT_EQ(poll().size(), 5u);
  EXPECT_EQ(poll(), Tags{10});
}

TEST_F(EngineCoreTest, UnusedExtentsAreBounded) {
  core = EngineCore(CoreLimits{.max_pending = 4, .max_unused = 3, .landings = 8});
  const Ticket a = submit({1, 2});
  poll();
  complete();
  collect(a);
  submit({3, 4});
  EXPECT_EQ(core.unused_room(), 1);
  EXPECT_EQ(poll(), Tags{});
  core.settle(SequenceId{1}, 1, 0);
  EXPECT_EQ(poll(), (Tags{3, 4}));
  core.settle(SequenceId{1}, 0, 1);
  EXPECT_EQ(core.counters().hit, 1);
  EXPECT_EQ(core.counters().wasted, 1);
}

TEST_F(EngineCoreTest, OneLowBatchWhileDemandWaits) {
  submit({1}, Priority::low);
  submit({2}, Priority::low);
  core.demand_begin();
  EXPECT_EQ(poll(), Tags{1});
  EXPECT_EQ(poll(), Tags{});
  submit({3}, Priority::normal);
  EXPECT_EQ(poll(), Tags{3});
  core.demand_end();
  EXPECT_EQ(poll(), Tags{2});
}

TEST_F(EngineCoreTest, DemandTakesWhatIsQueuedAndJoinsWhatFlies) {
  const Ticket t = submit({1, 2});
  EXPECT_EQ(core.claim(extent(7)).claim, EngineCore::Claim::absent);
  EXPECT_EQ(core.claim(extent(1)).claim, EngineCore::Claim::taken);
  EXPECT_EQ(core.claim(extent(1)).claim, EngineCore::Claim::absent);
  EXPECT_EQ(poll(), Tags{2});
  const auto joined = core.claim(extent(2));
  EXPECT_EQ(joined.claim, EngineCore::Claim::flying);
  EXPECT_EQ(core.landed(joined.flight), EngineCore::Landed::no);
  core.cancel(t);
  complete();
  EXPECT_EQ(core.landed(joined.flight), EngineCore::Landed::yes) << "held by the claim, though its ticket is gone";
  core.end_claim(joined.flight);
  EXPECT_EQ(core.counters().late, 2);
  EXPECT_EQ(core.counters().wasted, 0);
  EXPECT_EQ(core.unused(), 0);
  EXPECT_EQ(core.landings_free(), 8);
  core.check();
}

TEST_F(EngineCoreTest, DemandUsesWhatLanded) {
  const Ticket t = submit({1, 2});
  poll();
  core.complete(flights[0], true);
  core.complete(flights[1], false);
  const auto claimed = core.claim(extent(1));
  EXPECT_EQ(claimed.claim, EngineCore::Claim::landed);
  core.end_claim(claimed.flight);
  EXPECT_EQ(core.claim(extent(2)).claim, EngineCore::Claim::absent) << "it failed: attention tries itself";
  EXPECT_EQ(core.counters().hit, 1);
  EXPECT_EQ(collect(t), Tags{});
  EXPECT_EQ(core.unused(), 0);
}

TEST_F(EngineCoreTest, CountersAreOfWhoAskedFirst) {
  const Ticket a = submit({1, 2}, Priority::normal, kNever, 1);
  submit({2, 3}, Priority::normal, kNever, 2);
  poll();
  complete();
  collect(a);
  core.settle(SequenceId{1}, 1, 1);
  core.cancel_owner(SequenceId{2});
  const Counters one = core.take_counters(SequenceId{1}), two = core.take_counters(SequenceId{2});
  EXPECT_EQ(one.submitted, 2);
  EXPECT_EQ(one.read, 2);
  EXPECT_EQ(one.hit, 1);
  EXPECT_EQ(one.wasted, 1);
  EXPECT_EQ(two.joined, 1);
  EXPECT_EQ(two.cancelled, 1);
  EXPECT_EQ(core.take_counters(SequenceId{1}).submitted, 0) << "taken";
  EXPECT_EQ(core.counters().submitted, 4);
}

TEST_F(EngineCoreTest, QueueTimesAreCounted) {
  submit({1});
  poll();
  submit({2});
  now = 0.002;
  poll();
  now = 1000;
  submit({3});
  now = 2000;
  poll();
  EXPECT_EQ(core.counters().queue_time, (std::array<int64_t, 8>{1, 0, 0, 1, 0, 0, 0, 1}));
}

}  // namespace
}  // namespace fovea::prefetch
