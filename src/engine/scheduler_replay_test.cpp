// Sequences that compute rows again, because their blocks were lost.
#include "engine/scheduler_test_world.h"

#include <gtest/gtest.h>

namespace fovea {
namespace {

// Whatever block is lost, and whenever: the rows that are computed again write what they wrote, and no token is sampled twice.
TEST(SchedulerReplay, WritesAgainWhatWasWritten) {
  int all = 0;
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    World::Config c = config(12, 4, 60);
    c.seed = seed;
    World w(c);
    const SequenceId document = hold_document(w, 20 + static_cast<int32_t>(seed % 4));
    std::vector<SequenceId> ids = {w.add(question(w, document, 7, 12, true)), w.add(w.prompt(18, 14))};
    Spec sparse = w.prompt(18, 14);
    sparse.sparse = true;
    ids.push_back(w.add(sparse));
    if (seed % 2) w.scheduler().release(document);
    int replayed = 0;
    for (int step = 0; step < 60; ++step) {
      w.step();
      const SequenceId id = ids[w.random()() % ids.size()];
      if (!w.scheduler().contains(id) || !w.blocks().contains(id) || replayed == 8) continue;
      const BlockKey* last = w.blocks().last_key(id);
      // Published blocks are computed again by rows_again() instead.
      const int64_t first = last ? 5 : 0, end = w.blocks().blocks_for(w.blocks().num_tokens(id));
      if (end > first) replayed += w.scheduler().replay(id, first + static_cast<int64_t>(w.random()() % (end - first)));
      EXPECT_EQ(w.blocks().check_consistency().message(), "");
    }
    all += replayed;
    w.run();
    for (SequenceId id : ids) EXPECT_EQ(w.answers[id], w.expected(id).answer) << "seed " << seed;
    if (seed % 2 == 0) w.scheduler().release(document);
    w.expect_empty();
  }
  EXPECT_GT(all, 300);
}

// What is prefilled again is published as what follows is.
TEST(SchedulerReplay, PromptsArePublishedAllTheSame) {
  World w(config(10, 4, 60));
  Spec prompt = w.prompt(40, 3);
  const SequenceId id = w.add(prompt);
  w.step();
  ASSERT_EQ(w.blocks().num_tokens(id), 10);
  EXPECT_TRUE(w.scheduler().replay(id, 2));
  w.run();
  w.add(prompt);
  w.run();
  EXPECT_EQ(w.scheduler().stats().prefix_hit_tokens, 36);
}

// Sparse rows that are still to be computed again do not keep a sequence from giving way by recomputing.
TEST(SchedulerReplay, OnTheWayBackASequenceIsRecomputed) {
  World::Config c = config(16, 4, 10, /*swap=*/0);
  c.hasher = false;
  c.seed = 2;  // no early stop tokens
  World w(c);
  std::vector<SequenceId> ids = {w.add(w.prompt(4, 20)), w.add(w.prompt(4, 20))};
  Spec sparse = w.prompt(18, 8);
  sparse.sparse = true;
  ids.push_back(w.add(sparse));
  for (int step = 0; step < 3; ++step) w.step();
  ASSERT_EQ(w.blocks().num_tokens(ids[2]), 19);
  for (int step = 0; step < 20 && w.preempted.empty(); ++step) {
    ASSERT_TRUE(w.scheduler().replay(ids[2], 1));
    w.step();
  }
  EXPECT_EQ(w.preempted[ids[2]], 1);
  w.run();
  for (SequenceId id : ids) EXPECT_EQ(w.answers[id], w.expected(id).answer);
  w.expect_empty();
}

// They may follow from one another.
TEST(SchedulerReplay, SparseRowsAreComputedFromTheFirst) {
  World w(config(32, 4, 60));
  const SequenceId document = hold_document(w, 24), id = w.add(question(w, document, 4, 20, true));
  for (int step = 0; step < 10; ++step) w.step();
  ASSERT_GT(w.blocks().num_tokens(id), 32);
  EXPECT_TRUE(w.scheduler().replay(id, 8));
  EXPECT_EQ(w.blocks().num_tokens(id), 24);
  w.run();
  w.scheduler().release(document);
  w.expect_empty();
}

// Sparse rows of a parent were computed by its methods, which a fork need not have.
TEST(SchedulerReplay, SparseRowsOfAParentAreNotComputedByAFork) {
  World w(config(32, 4, 60));
  const SequenceId answered = hold_document(w, 24, /*sparse=*/true, /*max_new=*/5);
  const SequenceId id = w.add(question(w, answered, 4, 6, false));
  w.step();
  EXPECT_FALSE(w.scheduler().replay(id, w.blocks().blocks_for(w.blocks().num_tokens(id)) - 1));
  w.run();
  w.scheduler().release(answered);
  w.expect_empty();
}

}  // namespace
}  // namespace fovea
