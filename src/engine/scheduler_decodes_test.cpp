// Decode rows within a step's cap of KV blocks: what a row is charged, whose turn it is, and that nobody starves.
#include "engine/scheduler_test_world.h"

#include <gtest/gtest.h>

namespace fovea {
namespace {

World::Config capped(int64_t most, int32_t blocks = 400, uint32_t seed = 1) {
  World::Config c = config(512, 32, blocks);
  c.seed = seed;
  c.scheduler.max_step_kv_blocks = most;
  return c;
}

// A prompt of so many tokens whose decode rows, if sparse, read three blocks.
SequenceId add(World& w, int32_t tokens, bool sparse, int32_t max_new = 12) {
  Spec spec = w.prompt(tokens, max_new);
  spec.sparse = sparse;
  return w.add(spec);
}

std::vector<uint64_t> decoded(World& w) {
  std::vector<uint64_t> ids;
  for (const ScheduledRows& r : w.plan().rows) {
    if (r.phase == Phase::decode) ids.push_back(r.seq.value);
  }
  return ids;
}

using Ids = std::vector<uint64_t>;

TEST(SchedulerDecodes, ADenseRowIsChargedItsWholeContextASparseOneWhatItReads) {
  World w(capped(22));
  add(w, 39, false);                             // 10 blocks with the first decode row, then 11
  for (int i = 0; i < 2; ++i) add(w, 79, true);  // 20 blocks, of which 3 are read
  add(w, 39, false);
  w.step();  // the prompts
  w.step();
  EXPECT_EQ(decoded(w), (Ids{1, 2, 3})) << "10 + 3 + 3; the last would make it 26";
  w.step();
  EXPECT_EQ(decoded(w), (Ids{4, 1})) << "who waited comes first";
  w.step();
  EXPECT_EQ(decoded(w), (Ids{2, 3, 4}));
}

TEST(SchedulerDecodes, ShortContextsOfASparseRequestAreReadWhole) {
  World w(capped(6, 400, 5));
  add(w, 13, true);  // 14 keys, below the 16 of sparse_min_context: 4 blocks
  add(w, 13, true);
  w.step();
  w.step();
  EXPECT_EQ(decoded(w), (Ids{1})) << "4 and 4 are more than 6";
  w.step();
  EXPECT_EQ(decoded(w), (Ids{2}));
  for (int i = 0; i < 4; ++i) w.step();
  EXPECT_EQ(decoded(w), (Ids{1, 2})) << "from 16 keys on 3 blocks each";
}

TEST(SchedulerDecodes, AtLeastOneRowRunsAndAllHaveTheirTurn) {
  World w(capped(1));
  for (int i = 0; i < 3; ++i) add(w, 39, i == 1);
  w.step();
  for (int round = 0; round < 3; ++round) {
    for (uint64_t id = 1; id <= 3; ++id) {
      w.step();
      EXPECT_EQ(decoded(w), Ids{id});
    }
  }
  w.run();
  w.expect_empty();
}

TEST(SchedulerDecodes, WithoutACapEveryDecodeHasARow) {
  World w(capped(0));
  for (int i = 0; i < 5; ++i) add(w, 39, i % 2 == 0);
  w.step();
  w.step();
  EXPECT_EQ(decoded(w), (Ids{1, 2, 3, 4, 5}));
}

TEST(SchedulerDecodes, NewcomersTakeTheirPlaceInTheRound) {
  World w(capped(4));
  for (int i = 0; i < 2; ++i) add(w, 39, true);
  w.step();
  w.step();
  EXPECT_EQ(decoded(w), (Ids{1}));
  add(w, 39, true);
  w.step();
  EXPECT_EQ(decoded(w), (Ids{2}));
  w.step();
  EXPECT_EQ(decoded(w), (Ids{3}));
  w.step();
  EXPECT_EQ(decoded(w), (Ids{1}));
}

// The answers are what each would have been alone, whatever waits, swaps or is recomputed.
TEST(SchedulerDecodes, AnswersDoNotDependOnTheCap) {
  for (const int64_t most : {1, 9, 40}) {
    World w(capped(most, 60));
    for (int i = 0; i < 10; ++i) add(w, 20 + 7 * i, i % 3 != 0, 5 + i);
    w.run();
    EXPECT_EQ(w.finished.size() + w.failed.size(), 10u);
    EXPECT_TRUE(w.failed.empty());
    w.expect_empty();
  }
}

}  // namespace
}  // namespace fovea
