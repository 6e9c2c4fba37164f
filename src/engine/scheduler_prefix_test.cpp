// Prompts that are found in the cache, or below it: tails of held documents, prompts of which nothing is left to compute, chains
// that go on in a store.
#include "engine/scheduler_test_world.h"

namespace fovea {
namespace {

// The same prompt again, held or not.
Spec again(World& w, SequenceId document, bool hold) {
  Spec spec = w.expected(document).spec;
  spec.answers.clear();
  spec.hold = hold;
  return spec;
}

TEST(SchedulerPrefix, AHeldDocumentIsFoundWholeAndEndsWithoutARow) {
  for (int32_t tokens : {1, 3, 4, 5, 16, 19, 42}) {
    for (bool hold : {true, false}) {
      World w(config(16, 4, 64));
      const SequenceId first = hold_document(w, tokens);
      w.scheduler().release(first);
      const SequenceId second = w.add(again(w, first, hold));
      EXPECT_FALSE(w.step());
      EXPECT_EQ(w.finished.count(second), 1u) << tokens;
      EXPECT_EQ(w.scheduler().stats().prefix_hit_tokens, tokens);
      EXPECT_EQ(w.scheduler().is_held(second), hold);
      if (hold) {
        w.add(question(w, second, 5, 6, true));
        w.add(question(w, second, 2, 6, false));
        w.run();
        w.scheduler().release(second);
      }
      w.expect_empty();
    }
  }
}

// Prefill alone publishes its tail too; who samples has at least one row, and goes on behind the tail in a copy.
TEST(SchedulerPrefix, WhoSamplesComputesTheLastToken) {
  for (int32_t tokens : {4, 5, 18}) {
    World w(config(16, 4, 64));
    Spec spec = w.prompt(tokens, 0);
    w.add(spec);
    w.run();
    spec.max_new_tokens = 4;
    const SequenceId same = w.add(spec);
    w.step();
    const int64_t last = (tokens - 1) / kBlockSize * kBlockSize;  // the tail is of all tokens: no shorter one is known
    EXPECT_EQ(w.scheduler().cached_tokens(same), last);
    spec.prompt.push_back(7);
    const SequenceId longer = w.add(spec);
    w.step();
    EXPECT_EQ(w.scheduler().cached_tokens(longer), tokens);
    w.run();
    w.expect_empty();
  }
}

// The document is written on by its own answer: what is found under its tail's key is the prompt's alone.
TEST(SchedulerPrefix, AnAnswerBehindAHeldPromptDoesNotChangeItsTail) {
  World w(config(16, 4, 64));
  const SequenceId document = hold_document(w, 18, /*sparse=*/true, 9);
  Spec spec = again(w, document, true);
  spec.max_new_tokens = 0;
  const SequenceId held = w.add(spec);
  w.run();
  w.add(question(w, held, 3, 8, true));
  w.add(question(w, document, 3, 8, true));
  w.run();
  w.scheduler().release(held);
  w.scheduler().release(document);
  w.expect_empty();
}

TEST(SchedulerPrefix, OthersGoOnBesideAPromptThatIsFoundWhole) {
  World w(config(16, 2, 64));
  const SequenceId document = hold_document(w, 22);
  const SequenceId a = w.add(w.prompt(20, 8));
  w.step();
  const SequenceId found = w.add(again(w, document, true));
  const SequenceId b = w.add(w.prompt(9, 8));
  w.step();
  ASSERT_EQ(w.plan().complete.size(), 1u);
  EXPECT_EQ(w.plan().complete[0].seq, found);
  EXPECT_NE(rows_of(w.plan(), a), nullptr);
  w.run();
  EXPECT_EQ(w.finished.count(b), 1u);
  w.scheduler().release(document);
  w.scheduler().release(found);
  w.expect_empty();
}

// Tiles are published whole: the last one of a document that ends inside it is computed again.
TEST(SchedulerPrefix, TilesHaveNoTails) {
  World w(config(64, 4, 64));
  Spec spec = w.prompt(29, 0);
  spec.tile = 8;
  spec.hold = true;
  const SequenceId first = w.add(spec);
  w.run();
  const SequenceId second = w.add(spec);
  EXPECT_TRUE(w.step());
  EXPECT_EQ(w.scheduler().cached_tokens(second), 24);
  w.run();
  w.scheduler().release(first);
  w.scheduler().release(second);
  w.expect_empty();
}

// ---- chains that go on in a store ----

// A document of so many tokens that another process left in the store.
Spec stored_document(FakeStore& store, int32_t tokens, int32_t tile = 0) {
  World::Config c = config(16, 4, 64);
  c.store = &store;
  World w(c);
  Spec spec = w.prompt(tokens, 0);
  spec.hold = true;
  spec.tile = tile;
  const SequenceId id = w.add(spec);
  w.run();
  w.scheduler().release(id);
  w.expect_empty();
  return spec;
}

World::Config with_store(FakeStore& store) {
  World::Config c = config(16, 4, 64);
  c.store = &store;
  return c;
}

TEST(SchedulerLoading, ADocumentOfAnotherProcessIsLoadedWhole) {
  for (int32_t tokens : {3, 4, 5, 18, 44}) {
    FakeStore store;
    Spec spec = stored_document(store, tokens);
    World w(with_store(store));
    const SequenceId document = w.add(spec);
    w.run();
    EXPECT_TRUE(w.scheduler().is_held(document));
    EXPECT_EQ(w.scheduler().loaded_tokens(document), tokens);
    EXPECT_EQ(w.scheduler().cached_tokens(document), 0);
    w.add(question(w, document, 5, 6, true));
    w.add(question(w, document, 3, 6, false));
    w.run();
    const SequenceId again = w.add(spec);  // it lies in the pool now
    w.run();
    EXPECT_EQ(w.scheduler().cached_tokens(again), tokens);
    EXPECT_EQ(w.scheduler().loaded_tokens(again), 0);
    w.scheduler().release(document);
    w.scheduler().release(again);
    w.expect_empty();
  }
}

TEST(SchedulerLoading, TheRestIsComputed) {
  FakeStore store;
  Spec spec = stored_document(store, 18);
  spec.hold = false;
  spec.max_new_tokens = 5;
  World w(with_store(store));
  const SequenceId same = w.add(spec);
  w.run();  // a row of it is needed, and the tail is known with its last token alone
  EXPECT_EQ(w.answers[same], w.expected(same).answer);
  for (int32_t i = 0; i < 9; ++i) spec.prompt.push_back(40 + i);
  const SequenceId longer = w.add(spec);
  w.step();
  EXPECT_EQ(w.scheduler().cached_tokens(longer) + w.scheduler().loaded_tokens(longer), 16);
  w.run();
  World fresh(with_store(store));
  const SequenceId behind_the_tail = fresh.add(spec);
  fresh.step();
  fresh.step();
  EXPECT_EQ(fresh.scheduler().loaded_tokens(behind_the_tail), 24) << "its full blocks, six of them by now";
  fresh.run();
  fresh.expect_empty();
}

// A block that is not what it was ends the chain: prefill goes on from there.
TEST(SchedulerLoading, ABadBlockCutsTheChain) {
  for (int32_t tile : {0, 8}) {
    FakeStore store;
    Spec spec = stored_document(store, 45, tile);
    for (uint32_t seed = 1; seed < 20; ++seed) {
      World::Config c = with_store(store);
      c.bad_blocks = seed == 1 ? 100 : 20;
      c.seed = seed;
      World w(c);
      const SequenceId document = w.add(spec);
      w.run();
      EXPECT_TRUE(w.scheduler().is_held(document));
      const int64_t loaded = w.scheduler().loaded_tokens(document);
      EXPECT_TRUE(loaded % (tile > 0 ? tile : kBlockSize) == 0 || loaded == 45) << loaded;
      if (seed == 1) EXPECT_EQ(loaded, 0);
      w.add(question(w, document, 5, 6, true));
      w.run();
      w.scheduler().release(document);
      w.expect_empty();
    }
  }
}

// Its blocks are written until the engine says otherwise.
TEST(SchedulerLoading, AnAbortTakesTheBlocksWhenTheLoadIsOver) {
  FakeStore store;
  Spec spec = stored_document(store, 30);
  World w(with_store(store));
  w.slow = 100;
  const SequenceId document = w.add(spec);
  EXPECT_TRUE(w.step());
  EXPECT_TRUE(w.plan().waits_for_io);
  ASSERT_EQ(w.plan().loads.size(), 1u);
  const uint64_t load = w.plan().loads[0].id;
  EXPECT_TRUE(w.scheduler().wants_load(load));
  w.abort(document);
  EXPECT_FALSE(w.scheduler().wants_load(load));
  EXPECT_FALSE(w.scheduler().idle());
  EXPECT_EQ(w.blocks().num_free(), 64 - 8);
  EXPECT_TRUE(w.step());
  w.slow = 0;
  w.run();
  w.expect_empty();
}

TEST(SchedulerLoading, AnswersMayLeaveWhileTheirPromptIsLoaded) {
  FakeStore store;
  Spec spec = stored_document(store, 30);
  spec.hold = false;
  spec.max_new_tokens = 6;
  World w(with_store(store));
  w.slow = 100;
  const SequenceId first = w.add(spec, 3);
  w.step();
  w.abort(first);  // the record goes on under the second one's name
  w.step();
  w.slow = 0;
  w.run();
  EXPECT_EQ(w.finished.count(first), 0u);
  EXPECT_EQ(w.finished.size(), 2u);
  w.expect_empty();
}

TEST(SchedulerLoading, OthersRunMeanwhile) {
  FakeStore store;
  Spec spec = stored_document(store, 30);
  World w(with_store(store));
  w.slow = 100;
  const SequenceId document = w.add(spec);
  Spec stranger = w.prompt(20, 4);
  stranger.prompt[0] = 7;  // worlds of one seed draw the same prompts
  const SequenceId other = w.add(stranger);
  for (int i = 0; i < 10; ++i) w.step();
  EXPECT_EQ(w.finished.count(other), 1u);
  EXPECT_EQ(w.finished.count(document), 0u);
  w.slow = 0;
  w.run();
  w.scheduler().release(document);
  w.expect_empty();
}

// The pool is full of what is being stored: nobody fails, it gets free in time.
TEST(SchedulerLoading, BlocksThatAreBeingStoredAreWaitedFor) {
  FakeStore store;
  World::Config c = config(16, 4, 12);
  c.store = &store;
  World w(c);
  w.slow = 100;
  w.add(w.prompt(40, 3));
  while (w.finished.empty()) w.step();
  const SequenceId second = w.add(w.prompt(40, 3));
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(w.step());
  EXPECT_TRUE(w.plan().waits_for_io);
  EXPECT_TRUE(w.failed.empty());
  w.slow = 0;
  w.run();
  EXPECT_EQ(w.finished.count(second), 1u);
  w.expect_empty();
}

}  // namespace
}  // namespace fovea
