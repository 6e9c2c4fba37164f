#include "prefetch/engine.h"

#include "base/check.h"
#include "prefetch/fake_store_test_util.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace fovea::prefetch {
namespace {

constexpr double kNever = 1e30, kLong_s = 60;

Extent extent(int32_t block, uint32_t unit = 0) { return {FakeStore::key(block), unit, block}; }

bool holds(const std::byte* bytes, int32_t block, uint32_t unit = 0) {
  std::array<std::byte, FakeStore::kBytes> expected;
  FakeStore::fill(FakeStore::key(block), unit, expected.data());
  return std::memcmp(bytes, expected.data(), expected.size()) == 0;
}

class PrefetchEngineTest : public testing::Test {
 protected:
  Ticket submit(std::vector<Extent> extents, uint64_t owner = 1, Priority priority = Priority::normal) {
    auto ticket = engine->submit(SequenceId{owner}, extents, priority, kNever);
    EXPECT_TRUE(ticket.ok()) << ticket.status().message();
    return *ticket;
  }
  std::vector<int32_t> get(Ticket ticket) {
    std::vector<int32_t> blocks;
    engine->get(ticket, [&](const Extent& e, const std::byte* bytes) {
      EXPECT_TRUE(holds(bytes, e.tag, e.unit));
      blocks.push_back(e.tag);
    });
    return blocks;
  }
  // Reads blocks now; whether each came with its own bytes.
  std::vector<bool> read_now(std::vector<int32_t> blocks) {
    std::vector<ExtentRead> reads;
    std::vector<std::array<std::byte, FakeStore::kBytes>> bytes(blocks.size());
    for (size_t i = 0; i < blocks.size(); ++i)
      reads.push_back({Located{.slab = 1, .parts = 1, .tokens = 16}, FakeStore::key(blocks[i]), 0, 0, bytes[i].data()});
    ReadBatch batch{.reads = reads};
    EXPECT_TRUE(engine->read_now(batch).ok());
    EXPECT_EQ(batch.left, 0);
    std::vector<bool> good;
    for (size_t i = 0; i < blocks.size(); ++i) good.push_back(reads[i].result == IoResult::ok && holds(bytes[i].data(), blocks[i]));
    return good;
  }

  // The same with a deadline.
  std::vector<IoResult> read_until(std::vector<int32_t> blocks, double seconds) {
    std::vector<ExtentRead> reads;
    std::vector<std::array<std::byte, FakeStore::kBytes>> bytes(blocks.size());
    for (size_t i = 0; i < blocks.size(); ++i)
      reads.push_back({Located{.slab = 1, .parts = 1, .tokens = 16}, FakeStore::key(blocks[i]), 0, 0, bytes[i].data()});
    ReadBatch batch{.reads = reads, .deadline_s = clock.now_s() + seconds};
    EXPECT_TRUE(engine->read_now(batch).ok());
    EXPECT_EQ(batch.left, 0);
    std::vector<IoResult> results;
    for (size_t i = 0; i < blocks.size(); ++i) {
      results.push_back(reads[i].result);
      EXPECT_TRUE(reads[i].result != IoResult::ok || holds(bytes[i].data(), blocks[i]));
    }
    return results;
  }

  using Blocks = std::vector<int32_t>;
  FakeStore store;
  Clock clock;
  std::unique_ptr<Engine> engine = std::make_unique<Engine>(
      store, EngineOptions{{.max_pending = 8, .max_unused = 100, .landings = 16}, 0, FakeStore::kBytes}, clock);
};

TEST_F(PrefetchEngineTest, ATicketIsReadInTheBackground) {
  const Ticket t = submit({extent(1), extent(2, 3)});
  EXPECT_EQ(engine->wait(t, kLong_s), TicketState::ready);
  EXPECT_EQ(get(t), (Blocks{1, 2}));
  EXPECT_EQ(engine->wait(t, kLong_s), TicketState::unknown);
  EXPECT_EQ(engine->wait(Ticket{99}, kLong_s), TicketState::unknown);
  engine->settle(SequenceId{1}, 1, 1);
  EXPECT_EQ(engine->counters().hit, 1);
  EXPECT_EQ(engine->unused_room(), 100);
  EXPECT_EQ(store.pins(), 0);
}

TEST_F(PrefetchEngineTest, TheStoreIsToldHowUrgentATicketIs) {
  store.set_open(false);
  submit({extent(1)}, 1, Priority::low);
  store.wait_for_reads(1);
  submit({extent(2)}, 1, Priority::urgent);
  store.wait_for_reads(2);
  EXPECT_EQ(store.priorities(), (std::vector<int32_t>{3, 0}));
  store.set_open(true);
}

TEST_F(PrefetchEngineTest, WhatIsLateIsSaidToBe) {
  store.set_open(false);
  const Ticket t = submit({extent(1)});
  EXPECT_EQ(engine->wait(t, 0), TicketState::late);
  EXPECT_EQ(get(t), Blocks{});
  store.set_open(true);
  EXPECT_EQ(engine->wait(t, kLong_s), TicketState::ready);
}

TEST_F(PrefetchEngineTest, WhatIsNotThereFails) {
  store.set_bad(2);
  const Ticket t = submit({extent(1), extent(2), extent(0xFF)});
  EXPECT_EQ(engine->wait(t, kLong_s), TicketState::failed);
  EXPECT_EQ(get(t), Blocks{1});
  EXPECT_EQ(engine->counters().failed, 2);
  EXPECT_EQ(store.pins(), 0);
}

TEST_F(PrefetchEngineTest, DemandReadsWhatNobodyPrefetches) {
  EXPECT_EQ(read_now({1, 2, 3}), (std::vector<bool>{true, true, true}));
  EXPECT_EQ(engine->counters().read, 0);
}

TEST_F(PrefetchEngineTest, DemandJoinsWhatIsOnItsWay) {
  store.set_open(false);
  const Ticket t = submit({extent(1), extent(2)});
  store.wait_for_reads(2);
  std::thread opener([&] {
    store.wait_for_reads(3);
    store.set_open(true);
  });
  EXPECT_EQ(read_now({1, 3}), (std::vector<bool>{true, true}));
  opener.join();
  EXPECT_EQ(store.reads(), 3) << "1 was read once";
  EXPECT_EQ(engine->counters().late, 1);
  EXPECT_EQ(engine->wait(t, kLong_s), TicketState::ready);
  EXPECT_EQ(get(t), Blocks{2}) << "attention has taken 1";
}

TEST_F(PrefetchEngineTest, DemandUsesWhatLandedAndRetriesWhatFailed) {
  store.set_bad(2);
  const Ticket t = submit({extent(1), extent(2)});
  EXPECT_EQ(engine->wait(t, kLong_s), TicketState::failed);
  store.mend();
  EXPECT_EQ(read_now({1, 2}), (std::vector<bool>{true, true}));
  EXPECT_EQ(store.reads(), 3);
  EXPECT_EQ(engine->counters().hit, 1);
  EXPECT_EQ(engine->counters().late, 0);
}

TEST_F(PrefetchEngineTest, ADeadlineLeavesOutWhatIsLate) {
  using enum IoResult;
  EXPECT_EQ(read_until({1, 2}, kLong_s), (std::vector{ok, ok}));
  const Ticket t = submit({extent(3)});
  EXPECT_EQ(engine->wait(t, kLong_s), TicketState::ready);
  store.set_open(false);
  EXPECT_EQ(read_until({3, 4}, 0.001), (std::vector{ok, pending})) << "3 has landed";
  const Ticket late = submit({extent(4)});  // joins what goes on
  store.set_open(true);
  EXPECT_EQ(engine->wait(late, kLong_s), TicketState::ready);
  EXPECT_EQ(get(late), Blocks{4});
  EXPECT_EQ(store.reads(), 4) << "1 to 4, each once";
  EXPECT_EQ(read_until({4}, kLong_s), std::vector{ok}) << "collected: it is read anew";
  EXPECT_EQ(engine->counters().submitted, 2) << "by tickets; demand is not counted";
  EXPECT_EQ(engine->counters().hit, 1) << "3";
  EXPECT_EQ(get(t), Blocks{}) << "attention has taken 3";
  engine->drop_late();
  EXPECT_EQ(engine->tickets_room(), 8);
}

// More than there are places to land: what comes makes room for the rest.
TEST_F(PrefetchEngineTest, ADeadlineIsNotWaitedOutForWantOfRoom) {
  Blocks many(40);
  std::iota(many.begin(), many.end(), 0);
  EXPECT_EQ(read_until(many, kLong_s), std::vector(40, IoResult::ok));
  EXPECT_EQ(store.reads(), 40);
  // All places hold what nobody has collected yet: it is read past them.
  std::vector<Extent> guesses;
  for (int32_t i = 50; i < 66; ++i) guesses.push_back(extent(i));
  const Ticket t = submit(guesses);
  EXPECT_EQ(engine->wait(t, kLong_s), TicketState::ready);
  EXPECT_EQ(read_until({1, 50, 2}, kLong_s), std::vector(3, IoResult::ok));
  EXPECT_EQ(get(t).size(), 15u);
}

TEST_F(PrefetchEngineTest, ExtentsThatCannotBeReadAreResults) {
  store.set_bad(2);
  EXPECT_EQ(read_now({1, 2}), (std::vector<bool>{true, false}));
}

TEST_F(PrefetchEngineTest, WhatIsCancelledIsNotCollected) {
  store.set_open(false);
  const Ticket t = submit({extent(3)}, 2);
  EXPECT_EQ(engine->wait(t, 0), TicketState::late);
  engine->cancel_owner(SequenceId{2});
  EXPECT_EQ(engine->wait(t, kLong_s), TicketState::unknown);
  EXPECT_EQ(get(t), Blocks{});
  store.set_open(true);
}

TEST_F(PrefetchEngineTest, EndsWithReadsUnderWay) {
  store.set_open(false);
  submit({extent(1), extent(2)});
  store.wait_for_reads(2);
  submit({extent(3)});
  engine.reset();
  EXPECT_EQ(store.pins(), 0);
}

// Submissions, demand and cancels at random beside the thread: every byte is right, everything ends. For TSan.
TEST_F(PrefetchEngineTest, RandomUse) {
  std::mt19937 random(3);
  const auto pick = [&](int32_t n) { return static_cast<int32_t>(random() % n); };
  int64_t collected = 0;
  std::vector<Ticket> tickets;
  for (int32_t step = 0; step < 1000; ++step) {
    store.set_open(pick(4) != 0);
    std::vector<Extent> extents;
    for (int32_t i = 1 + pick(6); i > 0; --i) extents.push_back(extent(pick(40)));
    const auto ticket = engine->submit(SequenceId{uint64_t(pick(3))}, extents, Priority{pick(4)}, clock.now_s() + 0.001 * pick(3));
    if (ticket.ok()) tickets.push_back(*ticket);
    if (ticket.ok() && pick(3) == 0) (void)engine->wait(*ticket, 0.0001 * pick(3));
    if (pick(3) == 0) engine->cancel_owner(SequenceId{uint64_t(pick(3))});
    if (ticket.ok() && pick(5) == 0) engine->cancel(*ticket);
    store.set_open(true);
    if (pick(2)) {
      for (const bool good : read_now({pick(40), pick(20), 41})) ASSERT_TRUE(good);
    }
    std::erase_if(tickets, [&](Ticket t) {
      const auto one = [&](const Extent& e, const std::byte* bytes) {
        EXPECT_TRUE(holds(bytes, e.tag, e.unit));
        ++collected;
      };
      return engine->get(t, one) != TicketState::late;
    });
    const int64_t used = pick(static_cast<int32_t>(collected + 1));
    engine->settle(SequenceId{1}, used, collected - used);
    collected = 0;
  }
  for (uint64_t owner = 0; owner < 3; ++owner) engine->cancel_owner(SequenceId{owner});
  EXPECT_EQ(engine->tickets_room(), 8);
}

}  // namespace
}  // namespace fovea::prefetch
