// Steps that could not be carried out, and answers that are aborted.
#include "engine/scheduler_test_world.h"

#include <gtest/gtest.h>

namespace fovea {
namespace {

// ---- steps that could not be carried out ----

TEST(Scheduler, AFailedStepTakesItsSequencesAndNoOthers) {
  World w(config(32, 4, 60));
  w.add(w.prompt(10, 12));
  w.step();
  const Spec lost = w.prompt(40, 2);
  const SequenceId second = w.add(lost);
  w.scheduler().schedule();  // a decode row of the first, a chunk of the second
  const auto gone = w.scheduler().fail_step(false);
  EXPECT_EQ(gone.size(), 2u);
  EXPECT_TRUE(w.blocks().check_consistency().ok());
  w.expect_empty();
  w.add(lost);
  w.step();
  EXPECT_EQ(w.scheduler().stats().prefix_hit_tokens, 0) << "sequence " << second.value << " was never computed";
  w.run();
}

TEST(Scheduler, AFailedMoveTakesWhatIsSwappedOut) {
  World w(config(64, 8, 20));
  const SequenceId document = hold_document(w, 33);
  for (int i = 0; i < 5; ++i) w.add(question(w, document, 5, 25, true));
  while (w.scheduler().num_swapped() == 0) w.step();
  const size_t rows = w.scheduler().schedule().rows.size();
  const auto swapped = static_cast<size_t>(w.scheduler().num_swapped());
  EXPECT_GT(swapped, 0u);
  const auto gone = w.scheduler().fail_step(true);
  EXPECT_EQ(gone.size(), rows + swapped);
  EXPECT_EQ(w.scheduler().num_swapped(), 0);
  EXPECT_TRUE(w.scheduler().is_held(document));
  EXPECT_TRUE(w.blocks().check_consistency().ok());
}

TEST(Scheduler, AStepThatIsTriedAgainHasTheSameRows) {
  World w(config(24, 4, 60));
  for (int i = 0; i < 3; ++i) w.add(w.prompt(20 + i, 12));
  for (int step = 0; step < 8; ++step) {
    if (step % 2 == 0) {
      std::vector<std::pair<SequenceId, int32_t>> once;
      for (const ScheduledRows& r : w.scheduler().schedule().rows) once.emplace_back(r.seq, r.num_tokens);
      w.scheduler().retry_step();
      EXPECT_TRUE(w.blocks().check_consistency().ok());
      w.step();
      std::vector<std::pair<SequenceId, int32_t>> again;
      for (const ScheduledRows& r : w.plan().rows) again.emplace_back(r.seq, r.num_tokens);
      EXPECT_EQ(once, again);
    } else {
      w.step();
    }
  }
  w.run();
  w.expect_empty();
}

// ---- abort ----

TEST(Scheduler, AbortsInEveryState) {
  World w(config(64, 3, 24));
  const SequenceId document = hold_document(w, 33);
  std::vector<SequenceId> ids;
  for (int i = 0; i < 6; ++i) ids.push_back(w.add(question(w, document, 5, 40, true)));
  w.abort(ids[5]);  // waiting
  for (int i = 0; i < 200 && w.scheduler().num_swapped() == 0; ++i) w.step();
  ASSERT_GT(w.scheduler().num_swapped(), 0);
  for (SequenceId id : ids) {
    w.abort(id);  // running, swapped, waiting
    w.abort(id);
    EXPECT_TRUE(w.blocks().check_consistency().ok());
  }
  w.abort(SequenceId{12345});
  EXPECT_TRUE(w.scheduler().idle());
  w.abort(document);
  w.expect_empty();
}

TEST(Scheduler, AnAbortInFlightTakesEffectAtCommit) {
  for (bool keep_sample : {true, false}) {
    World w(config(64, 4, 40));
    w.drop_aborted_samples = !keep_sample;
    const SequenceId a = w.add(w.prompt(10, 20));
    const SequenceId b = w.add(w.prompt(10, 20));
    w.step();
    w.in_flight = [&] {
      w.abort(a);
      EXPECT_GT(w.scheduler().tokens(a).size(), 0u);  // still there
    };
    w.step();
    w.in_flight = nullptr;
    EXPECT_EQ(w.scheduler().num_running(), 1);
    w.run();
    EXPECT_EQ(w.finished.count(b), 1u);
    w.expect_empty();
  }
}

TEST(Scheduler, AnswersCanBeAbortedBeforeTheyFork) {
  World w(config(8, 8, 40));
  const SequenceId a = w.add(w.prompt(20, 6), 3);
  const SequenceId b{a.value + 1}, c{a.value + 2};
  w.step();
  w.abort(a);  // it carries the prompt for the others
  EXPECT_EQ(w.scheduler().num_running(), 1);
  w.step();
  w.in_flight = [&] { w.abort(b); };  // in the step that would fork it
  w.step();
  w.in_flight = nullptr;
  w.run();
  EXPECT_EQ(w.answers.count(a), 0u);
  EXPECT_EQ(w.answers[c], w.expected(c).answer);
  EXPECT_EQ(w.finished.count(c), 1u);
  w.expect_empty();

  const SequenceId d = w.add(w.prompt(20, 6), 2);
  w.step();
  w.abort(d);
  w.abort(SequenceId{d.value + 1});
  w.expect_empty();
}

}  // namespace
}  // namespace fovea
