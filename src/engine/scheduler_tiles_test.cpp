// Prefill methods whose choice depends on tiles of tokens: the fake model writes other numbers where a tile is split.
#include "engine/scheduler_test_world.h"

#include <gtest/gtest.h>

namespace fovea {
namespace {

constexpr int32_t kTile = 2 * kBlockSize;

Spec tiled(World& w, int32_t tokens, int32_t max_new) {
  Spec spec = w.prompt(tokens, max_new);
  spec.tile = kTile;
  return spec;
}

TEST(SchedulerTiles, ChunksEndWhereTilesDo) {
  World w(config(19, 4, 64));
  const SequenceId a = w.add(tiled(w, 45, 3));
  for (const auto& [first, n] : {std::pair{0, 16}, {16, 16}, {32, 13}}) {
    w.step();
    const ScheduledRows* r = rows_of(w.plan(), a);
    ASSERT_NE(r, nullptr);
    EXPECT_EQ(r->first_position, first);
    EXPECT_EQ(r->num_tokens, n);
  }
  w.run();
  EXPECT_EQ(w.answers[a], w.expected(a).answer);
  w.expect_empty();
}

// 16 decodes leave less than a tile: the prefill waits for them, and begins when they end.
TEST(SchedulerTiles, ABudgetBelowATileOnlyWaits) {
  World w(config(18, 17, 300));
  for (int i = 0; i < 16; ++i) w.add(w.prompt(4, 10));
  w.step();
  const SequenceId a = w.add(tiled(w, 40, 2));
  w.run();
  EXPECT_EQ(w.finished.count(a), 1u);
  w.expect_empty();
}

// Six decodes leave less than a tile, and whenever one ends, another request stands ready.
TEST(SchedulerTiles, NewcomersDoNotKeepATileWaiting) {
  World w(config(10, 8, 300));
  for (int i = 0; i < 6; ++i) w.add(w.prompt(1, 6 + 2 * i));
  w.step();
  const SequenceId a = w.add(tiled(w, 16, 1));
  int steps = 0;
  for (; w.finished.count(a) == 0 && steps < 60; ++steps) {
    w.add(w.prompt(2, 8));
    w.step();
  }
  EXPECT_LT(steps, 60);
  w.run();
  w.expect_empty();
}

// Four keys share 20 rows: 5 for each, which is no tile.
TEST(SchedulerTiles, AShareBelowATileStillGetsOne) {
  World w(config(20, 8, 400));
  const auto add_others = [&] {
    for (const char* key : {"a", "b", "c"}) {
      Spec spec = w.prompt(30, 1);
      spec.queue_key = key;
      w.add(spec);
    }
  };
  add_others();
  w.step();
  Spec spec = tiled(w, 40, 1);
  spec.queue_key = "tiled";
  const SequenceId a = w.add(spec);
  int steps = 0;
  for (; w.finished.count(a) == 0 && steps < 60; ++steps) {
    if (steps % 4 == 0) add_others();
    w.step();
  }
  EXPECT_LT(steps, 60);
  w.run();
  w.expect_empty();
}

TEST(SchedulerTiles, AHitIsCutAtATile) {
  World w(config(64, 4, 64));
  const Spec spec = tiled(w, 45, 2);
  const SequenceId cold = w.add(spec);
  w.run();
  Spec longer = spec;
  for (int32_t i = 0; i < 15; ++i) longer.prompt.push_back(7000 + i);
  const SequenceId warm = w.add(longer);
  w.step();
  // 45 tokens: 11 full blocks, of which the last lies in a tile that was not whole.
  EXPECT_EQ(w.scheduler().cached_tokens(warm), 40);
  w.run();
  const SequenceId again = w.add(spec);
  w.step();
  EXPECT_EQ(w.scheduler().cached_tokens(again), 40);
  w.run();
  EXPECT_EQ(w.answers[cold].size(), w.answers[again].size());
  // The tile that `cold` left unfinished is whole since `warm`, and its blocks are warm's alone.
  for (int32_t i = 0; i < 9; ++i) longer.prompt.push_back(8000 + i);
  const SequenceId longest = w.add(longer);
  w.step();
  EXPECT_EQ(w.scheduler().cached_tokens(longest), 56);
  w.run();
  EXPECT_EQ(w.answers[longest], w.expected(longest).answer);
  w.expect_empty();
}

TEST(SchedulerTiles, LineagesDoNotFindEachOthersBlocks) {
  World w(config(64, 4, 64));
  const Spec sparse = tiled(w, 45, 3);
  Spec dense = sparse;
  dense.tile = 0;
  w.add(sparse);
  w.run();
  const SequenceId first = w.add(dense);
  w.step();
  EXPECT_EQ(w.scheduler().cached_tokens(first), 0);
  w.run();
  const SequenceId second = w.add(dense);
  w.step();
  EXPECT_EQ(w.scheduler().cached_tokens(second), 44);
  w.run();
}

TEST(SchedulerTiles, AShortForkExtendsAndALongOneBeginsItsTileAgain) {
  World w(config(64, 4, 200));
  Spec document = tiled(w, 45, 0);
  document.hold = true;
  const SequenceId d = w.add(document);
  w.run();
  const SequenceId brief = w.add(question(w, d, 6, 3, false));
  w.step();
  ASSERT_NE(rows_of(w.plan(), brief), nullptr);
  EXPECT_EQ(rows_of(w.plan(), brief)->phase, Phase::extend);
  EXPECT_EQ(rows_of(w.plan(), brief)->first_position, 45);
  const SequenceId lengthy = w.add(question(w, d, 30, 3, false));
  w.step();
  ASSERT_NE(rows_of(w.plan(), lengthy), nullptr);
  EXPECT_EQ(rows_of(w.plan(), lengthy)->phase, Phase::prefill);
  EXPECT_EQ(rows_of(w.plan(), lengthy)->first_position, 40);
  const SequenceId both = w.add(question(w, d, 6, 3, true));
  w.run();
  for (SequenceId id : {brief, lengthy, both}) EXPECT_EQ(w.answers[id], w.expected(id).answer);
  w.scheduler().release(d);
  w.expect_empty();
}

// What dense decode rows wrote behind a sparse prefill cannot be prefilled again: such sequences are swapped.
TEST(SchedulerTiles, PreemptionKeepsWhatDecodeWrote) {
  World w(config(32, 8, 30));
  std::vector<SequenceId> ids;
  for (int i = 0; i < 6; ++i) ids.push_back(w.add(tiled(w, 20, 30)));
  w.run();
  int64_t preempted = 0;
  for (const auto& [id, n] : w.preempted) preempted += n;
  EXPECT_GT(preempted, 0);
  for (SequenceId id : ids) EXPECT_EQ(w.answers[id], w.expected(id).answer);
  w.expect_empty();
}

// A long question on an answered document cannot be prefilled again, so it is swapped out between two of its tiles. It comes
// back once a tile of it fits: the rows that others leave, and the free blocks, may be enough for one row and not for that.
TEST(SchedulerTiles, AQuestionComesBackWithRoomForATile) {
  constexpr int32_t kLongTile = 8 * kBlockSize;
  int64_t swapped = 0;
  for (uint32_t seed = 1; seed <= 120; ++seed) {
    World::Config c = config(kLongTile + 6, 8, 100 + static_cast<int32_t>(seed % 30), 400);
    c.seed = seed;
    World w(c);
    Spec document = w.prompt(8, 3);
    document.tile = kLongTile;
    document.hold = true;
    const SequenceId held = w.add(document);
    w.run();
    for (int i = 0; i < 3; ++i) {
      w.add(w.prompt(1 + static_cast<int32_t>(w.random()() % 100), 80), 3);
      w.add(question(w, held, 300, 3, false));
    }
    w.run();
    swapped += w.scheduler().stats().preempted_swap;
    w.scheduler().release(held);
    w.expect_empty();
    if (::testing::Test::HasFailure()) FAIL() << "seed " << seed;
  }
  EXPECT_GT(swapped, 10);
}

TEST(SchedulerTiles, ManyAtRandom) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    World::Config c = config(20 + static_cast<int32_t>(seed) * 3, 6, 60);
    c.seed = seed;
    World w(c);
    for (int i = 0; i < 60; ++i) {
      const auto tokens = static_cast<int32_t>(1 + w.random()() % 70);
      const auto answer = static_cast<int32_t>(1 + w.random()() % 12);
      Spec spec = w.random()() % 2 ? tiled(w, tokens, answer) : w.prompt(tokens, answer);
      spec.sparse = w.random()() % 3 == 0;
      w.add(spec);
      w.step();
    }
    w.run();
    w.expect_empty();
    if (::testing::Test::HasFailure()) FAIL() << "seed " << seed;
  }
}

TEST(SchedulerTiles, ATileMustBeWholeBlocks) {
  World w(config(64, 4, 64));
  Spec spec = tiled(w, 20, 1);
  spec.tile = kBlockSize + 1;
  spec.choose_methods();
  spec.answers = {SequenceId{99}};
  const Status s = w.scheduler().add(spec);
  EXPECT_EQ(s.code(), StatusCode::invalid_argument);
  EXPECT_NE(s.message().find("5 tokens"), std::string::npos) << s.message();
}

}  // namespace
}  // namespace fovea
