// Prompts that are found in the cache: tails of held documents, and prompts of which nothing is left to compute.
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
  EXPECT_EQ(w.plan().complete, std::vector{found});
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

}  // namespace
}  // namespace fovea
