// Running ahead: a step is planned and launched before anyone has read what the step before sampled.
#include "engine/scheduler.h"

#include <gtest/gtest.h>

namespace fovea {
namespace {

constexpr int32_t kBlocks = 8, kBlock = 4;

class Unread : public ::testing::Test {
 protected:
  Unread() : blocks_({kBlocks, kBlock, 0}), scheduler_(config(), blocks_) {}

  static SchedulerConfig config() {
    SchedulerConfig c;
    c.max_num_batched_tokens = 32;
    c.max_num_seqs = 4;
    return c;
  }

  void add(uint64_t id, int32_t prompt, int32_t max_new_tokens) {
    SequenceSpec spec;
    spec.answers = {SequenceId{id}};
    for (int32_t i = 0; i < prompt; ++i) spec.prompt.push_back(100 + i);
    spec.max_new_tokens = max_new_tokens;
    ASSERT_TRUE(scheduler_.add(std::move(spec)).ok());
  }

  // Commits the plan with this token for every sequence that samples.
  void commit(int32_t token, bool finished = false) {
    std::vector<Sampled> sampled;
    for (const ScheduledRows& r : plan_->rows) {
      for (SequenceId id : r.sample_for) sampled.push_back({id, token, finished});
    }
    scheduler_.commit(sampled);
  }
  const StepPlan& schedule() { return *(plan_ = &scheduler_.schedule()); }

  BlockManager blocks_;
  Scheduler scheduler_;
  const StepPlan* plan_ = nullptr;
};

TEST_F(Unread, TheNextStepIsPlannedWithoutTheToken) {
  add(1, 5, 10);
  schedule();
  commit(7);
  schedule();
  commit(kUnreadToken);
  schedule();  // position 6 holds the unread token
  ASSERT_EQ(plan_->rows.size(), 1u);
  EXPECT_EQ(plan_->rows[0].first_position, 6);
  EXPECT_EQ(scheduler_.tokens(SequenceId{1})[6], kUnreadToken);
  scheduler_.resolve(SequenceId{1}, 42);
  EXPECT_EQ(scheduler_.tokens(SequenceId{1})[6], 42);
  commit(kUnreadToken);
  scheduler_.resolve(SequenceId{1}, 43);
  EXPECT_EQ(scheduler_.tokens(SequenceId{1}).back(), 43);
}

TEST_F(Unread, AnAnswerThatHadEndedLeavesNothingBehind) {
  add(1, 5, 10);
  add(2, 5, 10);
  schedule();
  commit(7);
  schedule();
  commit(kUnreadToken);
  schedule();
  scheduler_.resolve(SequenceId{1}, 2);  // it was the last one: the row in flight is one too many
  scheduler_.abort(SequenceId{1});
  scheduler_.resolve(SequenceId{2}, 8);
  std::vector<Sampled> sampled = {{SequenceId{2}, kUnreadToken, false}};
  EXPECT_TRUE(scheduler_.commit(sampled).empty());
  schedule();
  ASSERT_EQ(plan_->rows.size(), 1u);
  EXPECT_EQ(plan_->rows[0].seq, SequenceId{2});
  scheduler_.resolve(SequenceId{2}, 9);
  commit(10, true);
  EXPECT_TRUE(scheduler_.idle());
  EXPECT_EQ(blocks_.num_free(), kBlocks);
}

TEST_F(Unread, AVictimOfPreemptionGetsItsTokenToo) {
  add(1, 14, 15);
  add(2, 10, 15);  // 4 and 3 blocks of 8
  schedule();
  commit(7);
  schedule();
  for (int i = 0; i < 12 && plan_->preempted.empty(); ++i) {  // until the pool is full and the second gives way
    commit(kUnreadToken);
    schedule();
    for (uint64_t id : {1, 2}) {  // the second has no row, and no new token, once it finds no block
      const SequenceId s{id};
      if (scheduler_.tokens(s).back() == kUnreadToken) scheduler_.resolve(s, 50 + i);
    }
  }
  ASSERT_EQ(plan_->preempted, std::vector<SequenceId>{SequenceId{2}});
  for (const int32_t token : scheduler_.tokens(SequenceId{2})) EXPECT_NE(token, kUnreadToken);
}

TEST_F(Unread, OfASequenceThatIsGoneNothingHappens) {
  scheduler_.resolve(SequenceId{77}, 5);
  EXPECT_TRUE(scheduler_.idle());
}

}  // namespace
}  // namespace fovea
