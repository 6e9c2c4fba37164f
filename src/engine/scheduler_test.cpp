#include "engine/scheduler.h"

#include "base/count_allocations_test_util.h"
#include "engine/scheduler_test_world.h"

#include <gtest/gtest.h>

namespace fovea {
namespace {

// ---- plans ----

TEST(Scheduler, ChunksAPromptAndSamplesAtItsEnd) {
  World w(config(10, 4, 64));
  const SequenceId a = w.add(w.prompt(25, 3));
  for (const auto& [first, n] : {std::pair{0, 10}, {10, 10}, {20, 5}}) {
    w.step();
    const ScheduledRows* r = rows_of(w.plan(), a);
    ASSERT_NE(r, nullptr);
    EXPECT_EQ(r->phase, Phase::prefill);
    EXPECT_EQ(r->first_position, first);
    EXPECT_EQ(r->num_tokens, n);
    EXPECT_EQ(r->sample_for.size(), n == 5 ? 1u : 0u);
  }
  w.run();
  EXPECT_EQ(w.answers[a], w.expected(a).answer);
  w.expect_empty();
}

// Where the pool is short of columns a chunk waits for those of blocks that are being stored, unless the store hangs.
TEST(Scheduler, AChunkWaitsForColumnsRatherThanBeShort) {
  BlockManager blocks({.num_blocks = 64, .block_size = kBlockSize, .num_columns = 10, .reserve_columns = 2});
  std::vector<PublishedRun> published;
  blocks.note_published(&published);
  Scheduler scheduler({.max_num_batched_tokens = 8 * kBlockSize, .max_num_seqs = 2}, blocks);
  KeyContext context;
  context.block_size = kBlockSize;
  BlockHasher hasher(context);
  Spec spec;
  spec.answers = {SequenceId{1}};
  spec.prompt.assign(20 * kBlockSize, 7);
  spec.hasher = &hasher;
  spec.choose_methods();
  ASSERT_TRUE(scheduler.add(spec).ok());
  EXPECT_EQ(scheduler.schedule().num_tokens, 8 * kBlockSize);
  scheduler.commit({});
  ASSERT_EQ(published.size(), 1u);
  for (BlockId block : published[0].blocks) blocks.pin(block);
  EXPECT_TRUE(scheduler.schedule().empty());
  EXPECT_TRUE(scheduler.schedule().waits_for_io);
  EXPECT_EQ(scheduler.schedule(/*may_wait=*/false).num_tokens, 2 * kBlockSize);
  scheduler.retry_step();
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_TRUE(scheduler.schedule().waits_for_io) << "it would lack " << 8 - i << " columns";
    blocks.unpin(published[0].blocks[i]);
    EXPECT_TRUE(blocks.set_stored(published[0].blocks[i], published[0].keys[i], {.slab = 1}));
  }
  EXPECT_EQ(scheduler.schedule().num_tokens, 8 * kBlockSize);
  scheduler.retry_step();
}

TEST(Scheduler, AHeavyPrefillDoesNotStopDecodes) {
  World w(config(8, 4, 200));
  const SequenceId a = w.add(w.prompt(4, 40));
  w.step();
  const SequenceId b = w.add(w.prompt(200, 1));
  const size_t before = w.answers[a].size();
  for (int i = 0; i < 20 && w.finished.count(a) == 0; ++i) {
    w.step();
    ASSERT_NE(rows_of(w.plan(), a), nullptr);
    EXPECT_EQ(w.plan().rows[0].seq, a);  // decodes come first
    EXPECT_EQ(rows_of(w.plan(), b)->num_tokens, 7);
  }
  EXPECT_GT(w.answers[a].size(), before);
  w.run();
  w.expect_empty();
}

TEST(Scheduler, SeveralPrefillsShareAStep) {
  World w(config(30, 4, 64));
  for (int32_t n : {7, 8, 9}) w.add(w.prompt(n, 2));
  w.step();
  EXPECT_EQ(w.plan().rows.size(), 3u);
  EXPECT_EQ(w.plan().num_tokens, 24);
  w.run();
}

TEST(Scheduler, AnotherKeyIsNotKeptWaitingByALongPrompt) {
  World w(config(16, 8, 300));
  w.add(w.prompt(400, 1, "long"));
  w.add(w.prompt(400, 1, "long"));
  w.step();
  EXPECT_EQ(w.plan().num_tokens, 16);  // nobody else is there: it takes all
  const SequenceId quick = w.add(w.prompt(8, 1, "quick"));
  w.step();
  ASSERT_NE(rows_of(w.plan(), quick), nullptr);
  EXPECT_EQ(rows_of(w.plan(), quick)->num_tokens, 8);
  EXPECT_EQ(w.plan().num_tokens, 16);
  EXPECT_EQ(w.finished.count(quick), 1u);
}

TEST(Scheduler, FirstComeFirstServedWithinAKeyAndRoundRobinAcrossKeys) {
  World w(config(64, 1, 64));  // one at a time
  std::vector<SequenceId> ids;
  for (const char* key : {"a", "a", "a", "b", "c", "b"}) ids.push_back(w.add(w.prompt(5, 1, key)));
  std::vector<SequenceId> order;
  while (!w.scheduler().idle()) {
    w.step();
    order.push_back(w.plan().rows[0].seq);
  }
  EXPECT_EQ(order, (std::vector<SequenceId>{ids[0], ids[3], ids[4], ids[1], ids[5], ids[2]}));
}

TEST(Scheduler, ALargeRequestIsNotOvertakenForever) {
  World w(config(32, 4, 20));  // 80 tokens
  for (int i = 0; i < 3; ++i) w.add(w.prompt(8, 12, "small"));
  w.step();
  const SequenceId large = w.add(w.prompt(70, 4, "large"));
  int64_t started = -1;
  for (int i = 0; i < 200 && started < 0; ++i) {
    w.add(w.prompt(8, 12, "small"));  // they keep coming
    w.step();
    if (rows_of(w.plan(), large) != nullptr) started = i;
  }
  EXPECT_GE(started, 1);
  EXPECT_LE(started, 60);
  w.run();
  EXPECT_TRUE(w.failed.empty());
  w.expect_empty();
}

TEST(Scheduler, AStepOfDecodesAllocatesNothing) {
  World w(config(64, 8, 64));
  BlockManager blocks({64, 4, 0});
  SchedulerConfig c;
  Scheduler scheduler(c, blocks);
  for (uint64_t i = 1; i <= 4; ++i) {
    Spec spec;
    spec.answers = {SequenceId{i}};
    spec.prompt = {1, 2, 3};
    spec.max_new_tokens = 50;
    ASSERT_TRUE(scheduler.add(spec).ok());
  }
  std::vector<Sampled> sampled;
  int64_t allocated = 0;
  for (int step = 0; step < 40; ++step) {
    const int64_t before = testing::heap_allocations();
    const StepPlan& plan = scheduler.schedule();
    allocated = testing::heap_allocations() - before;
    sampled.clear();
    for (const ScheduledRows& r : plan.rows) sampled.push_back({r.seq, 5, false});
    const int64_t middle = testing::heap_allocations();
    scheduler.commit(sampled);
    allocated += testing::heap_allocations() - middle;
    if (step > 0) {
      ASSERT_EQ(allocated, 0) << "step " << step;
    }
  }
}

// ---- n answers, held documents, forks, extension ----

TEST(Scheduler, NAnswersShareOnePrefill) {
  World w(config(64, 8, 64));
  const SequenceId a = w.add(w.prompt(21, 10), 4);
  w.step();
  ASSERT_EQ(w.plan().rows.size(), 1u);
  EXPECT_EQ(w.plan().num_tokens, 21);
  EXPECT_EQ(w.answers.size(), 4u);
  EXPECT_EQ(w.blocks().pool().num_used(), 6);
  w.run();
  std::set<std::vector<int32_t>> different;
  for (uint64_t i = 0; i < 4; ++i) {
    const SequenceId id{a.value + i};
    EXPECT_EQ(w.answers[id], w.expected(id).answer);
    different.insert(w.answers[id]);
  }
  EXPECT_EQ(different.size(), 4u);
  w.expect_empty();
}

TEST(Scheduler, NAnswersReserveTheirPlaces) {
  World w(config(64, 4, 64));
  w.add(w.prompt(5, 5), 3);
  const SequenceId b = w.add(w.prompt(5, 5), 2);
  w.step();
  EXPECT_EQ(rows_of(w.plan(), b), nullptr);
  w.run();
  w.expect_empty();
}

TEST(Scheduler, QuestionsForkAHeldDocument) {
  World w(config(64, 8, 40));
  const SequenceId document = hold_document(w, 42);
  EXPECT_EQ(w.blocks().pool().num_used(), 11);
  std::vector<SequenceId> questions;
  for (int i = 0; i < 4; ++i) questions.push_back(w.add(question(w, document, 5, 6, false)));
  w.step();
  for (SequenceId q : questions) {
    ASSERT_NE(rows_of(w.plan(), q), nullptr);
    EXPECT_EQ(rows_of(w.plan(), q)->phase, Phase::prefill);
    EXPECT_EQ(rows_of(w.plan(), q)->first_position, 42);
    EXPECT_EQ(rows_of(w.plan(), q)->num_tokens, 5);
    EXPECT_EQ(w.scheduler().cached_tokens(q), 42);
  }
  w.run();
  EXPECT_EQ(w.finished.size(), 5u);
  EXPECT_EQ(w.blocks().pool().num_used(), 11);
  w.scheduler().release(document);
  w.scheduler().release(document);
  w.expect_empty();
}

TEST(Scheduler, AForkMayCutItsParentShort) {
  World w(config(64, 8, 40));
  const SequenceId document = hold_document(w, 30, false, 5);
  for (int64_t at : {1, 4, 7, 29, 30}) {
    Spec spec = question(w, document, 3, 4, false);
    spec.fork_tokens = at;
    w.add(spec);
  }
  // All of it: its last token is generated but not computed, so the fork computes it.
  const SequenceId all = w.add(question(w, document, 3, 4, false));
  w.step();
  EXPECT_EQ(rows_of(w.plan(), all)->first_position, w.blocks().num_tokens(document));
  EXPECT_EQ(rows_of(w.plan(), all)->num_tokens, 4);
  w.run();
  EXPECT_EQ(w.finished.size(), 7u);
}

TEST(Scheduler, AShortExtensionGoesThroughTheDecodeMethodInOneStep) {
  World w(config(64, 8, 60));
  const SequenceId document = hold_document(w, 42);
  const SequenceId sparse = w.add(question(w, document, 8, 6, true));
  const SequenceId too_long = w.add(question(w, document, 9, 6, true));
  w.step();
  EXPECT_EQ(rows_of(w.plan(), sparse)->phase, Phase::extend);
  EXPECT_EQ(rows_of(w.plan(), sparse)->route, kSparse);
  EXPECT_EQ(rows_of(w.plan(), sparse)->num_tokens, 8);
  EXPECT_EQ(rows_of(w.plan(), sparse)->sample_for.size(), 1u);
  EXPECT_EQ(rows_of(w.plan(), too_long)->phase, Phase::prefill);
  EXPECT_EQ(rows_of(w.plan(), too_long)->route, Route{});
  w.step();
  for (const ScheduledRows& r : w.plan().rows) EXPECT_TRUE(r.route == kSparse && r.phase == Phase::decode);
  w.run();
  EXPECT_EQ(w.finished.size(), 3u);
}

TEST(Scheduler, AnExtensionBeyondTheBudgetTakesSeveralSteps) {
  World w(config(5, 4, 60));
  const SequenceId document = hold_document(w, 42);
  const SequenceId q = w.add(question(w, document, 8, 6, true));
  for (int32_t n : {5, 3}) {
    w.step();
    EXPECT_EQ(rows_of(w.plan(), q)->phase, Phase::extend);
    EXPECT_EQ(rows_of(w.plan(), q)->num_tokens, n);
  }
  w.run();
}

TEST(Scheduler, AShortContextStaysDense) {
  World w(config(64, 8, 60));
  const SequenceId document = hold_document(w, 15);  // below sparse_min_context
  const SequenceId q = w.add(question(w, document, 4, 6, true));
  w.step();
  EXPECT_EQ(rows_of(w.plan(), q)->phase, Phase::prefill);
  w.step();
  EXPECT_EQ(rows_of(w.plan(), q)->route, kSparse);  // 20 keys
  w.run();
  // One that grows past the limit while it decodes.
  for (const int32_t min_context : {16, 19}) {
    Spec spec = w.prompt(13, 10);
    spec.sparse = true;
    spec.min_context = min_context;
    const SequenceId grows = w.add(spec);
    w.step();
    while (!w.scheduler().idle()) {
      w.step();
      const ScheduledRows* r = rows_of(w.plan(), grows);
      EXPECT_EQ(r->route == kSparse, r->first_position + 1 >= min_context);
    }
  }
}

TEST(Scheduler, APrefixHitSkipsWhatIsThere) {
  World w(config(64, 8, 60));
  Spec spec = w.prompt(30, 3);
  w.add(spec);
  w.run();
  const SequenceId again = w.add(spec);
  w.step();
  EXPECT_EQ(rows_of(w.plan(), again)->first_position, 28);
  EXPECT_EQ(rows_of(w.plan(), again)->phase, Phase::prefill);
  EXPECT_EQ(w.scheduler().stats().prefix_hit_tokens, 28);
  w.run();
}

// An answer must not depend on what others left in the cache.
TEST(Scheduler, WhatFollowsAPrefixHitIsPrefilled) {
  World w(config(64, 8, 60));
  Spec spec = w.prompt(30, 3);
  spec.sparse = true;
  w.add(spec);
  w.run();
  const SequenceId again = w.add(spec);
  w.step();
  EXPECT_EQ(rows_of(w.plan(), again)->first_position, 28);
  EXPECT_EQ(rows_of(w.plan(), again)->phase, Phase::prefill);
  w.run();
}

TEST(Scheduler, OnlyPrefilledTokensArePublished) {
  World w(config(64, 8, 60));
  const SequenceId document = hold_document(w, 20, /*sparse=*/true, 12);
  ASSERT_GE(w.blocks().num_tokens(document), 24);  // some were decoded, sparsely
  const auto tokens = w.scheduler().tokens(document).first(static_cast<size_t>(w.blocks().num_tokens(document)));
  Spec same = w.prompt(0, 4);
  same.prompt.assign(tokens.begin(), tokens.end());
  const Spec asked = question(w, document, 12, 4, false);
  same.prompt.insert(same.prompt.end(), asked.prompt.begin(), asked.prompt.end());
  w.add(asked);  // prefilled on top of what was decoded
  w.run();
  const SequenceId cold = w.add(same);
  w.step();
  EXPECT_EQ(w.scheduler().cached_tokens(cold), 20);
  w.run();
}

TEST(Scheduler, AReleasedDocumentWaitsForItsForks) {
  World w(config(64, 1, 40));
  const SequenceId document = hold_document(w, 42);
  const SequenceId first = w.add(question(w, document, 5, 6, true));
  w.step();
  const SequenceId second = w.add(question(w, document, 5, 6, true));  // waits: one sequence at a time
  w.scheduler().release(document);
  Spec late = question(w, document, 5, 6, true);
  late.answers = {SequenceId{500}};
  EXPECT_EQ(w.scheduler().add(late).code(), StatusCode::not_found);
  w.run();
  EXPECT_EQ(w.answers[first], w.expected(first).answer);
  EXPECT_EQ(w.answers[second], w.expected(second).answer);
  w.expect_empty();
}

TEST(Scheduler, ReleasedBeforeItFinishesItIsNotHeld) {
  World w(config(8, 4, 40));
  Spec spec = w.prompt(30, 0);
  spec.hold = true;
  const SequenceId document = w.add(spec);
  w.step();
  w.scheduler().release(document);
  w.run();
  EXPECT_EQ(w.finished.count(document), 1u);
  EXPECT_FALSE(w.scheduler().is_held(document));
  w.expect_empty();
}

// ---- preemption ----

TEST(Scheduler, DenseSequencesAreRecomputed) {
  World w(config(64, 8, 16, 0));  // 64 tokens, no swap space
  std::vector<SequenceId> ids;
  for (int i = 0; i < 3; ++i) ids.push_back(w.add(w.prompt(14, 30)));
  w.run();
  EXPECT_GT(w.scheduler().stats().preempted_recompute, 0);
  EXPECT_EQ(w.preempted.count(ids[0]), 0u);  // the first that came never gives way
  EXPECT_EQ(w.finished.size(), 3u);
  w.expect_empty();
}

TEST(Scheduler, SparseSequencesAreSwapped) {
  World w(config(64, 8, 20));
  const SequenceId document = hold_document(w, 33);
  for (int i = 0; i < 5; ++i) w.add(question(w, document, 5, 25, true));
  w.run();
  EXPECT_GT(w.scheduler().stats().preempted_swap, 0);
  EXPECT_EQ(w.scheduler().stats().swapped_in, w.scheduler().stats().preempted_swap);
  EXPECT_EQ(w.scheduler().stats().preempted_recompute, 0);
  EXPECT_EQ(w.finished.size(), 6u);
  EXPECT_TRUE(w.failed.empty());
}

TEST(Scheduler, SwapSpaceShortMeansWaiting) {
  World w(config(64, 8, 20, 2));
  const SequenceId document = hold_document(w, 33);
  for (int i = 0; i < 5; ++i) w.add(question(w, document, 5, 12, true));
  w.run();
  EXPECT_EQ(w.finished.size() + w.failed.size(), 6u);
  EXPECT_GE(w.finished.size(), 4u);
}

TEST(Scheduler, WhatCannotGoOnFailsAndNamesTheNumbers) {
  World w(config(64, 8, 12, 0));
  const SequenceId document = hold_document(w, 40);  // 10 of 12 blocks, and it is not released
  const SequenceId other = w.add(w.prompt(20, 2));
  const SequenceId q = w.add(question(w, document, 4, 2, true));
  w.run();
  EXPECT_EQ(w.finished.count(q), 1u);  // it fits beside the document
  ASSERT_EQ(w.failed.count(other), 1u);
  const std::string& message = w.failed[other].message();
  EXPECT_NE(message.find("20 tokens need 5 KV blocks, 2 of 12 are free"), std::string::npos) << message;
  w.scheduler().release(document);
  w.expect_empty();
}

TEST(Scheduler, ASequenceThatFillsThePoolRuns) {
  for (bool sparse : {false, true}) {
    World w(config(64, 8, 10, 10));
    std::vector<SequenceId> ids;
    for (int i = 0; i < 3; ++i) {
      Spec spec = w.prompt(30, 11);  // 40 slots: all ten blocks
      spec.sparse = sparse;
      ids.push_back(w.add(spec));
    }
    w.run();
    EXPECT_TRUE(w.failed.empty());
    EXPECT_EQ(w.finished.size(), 3u);
    w.expect_empty();
  }
}

// ---- refusal ----

TEST(Scheduler, RefusesWhatCanNeverRun) {
  World w(config(64, 2, 10));
  const auto refuse = [&](Spec spec, StatusCode code, const char* what) {
    const Status s = w.scheduler().add(std::move(spec));
    EXPECT_EQ(s.code(), code);
    EXPECT_NE(s.message().find(what), std::string::npos) << s.message();
  };
  const auto base = [&](int32_t n, int32_t max_new) {
    Spec spec = w.prompt(n, max_new);
    spec.answers = {SequenceId{77}};
    return spec;
  };
  refuse(base(38, 4), StatusCode::resource_exhausted, "38 prompt and 4 new tokens need 11 KV blocks of 4 tokens, the pool has 10");
  refuse(base(0, 4), StatusCode::invalid_argument, "no tokens");
  refuse(base(4, -1), StatusCode::invalid_argument, "max_new_tokens is -1");
  Spec spec = base(4, 4);
  spec.answers = {};
  refuse(spec, StatusCode::invalid_argument, "n is 0");
  spec.answers = {SequenceId{1}, SequenceId{2}, SequenceId{3}};
  refuse(spec, StatusCode::invalid_argument, "n is 3, at most max_num_seqs 2");
  spec.answers = {SequenceId{1}, SequenceId{1}};
  refuse(spec, StatusCode::invalid_argument, "sequence 1 exists already");
  spec.answers = {SequenceId{1}, SequenceId{2}};
  spec.hold = true;
  refuse(spec, StatusCode::invalid_argument, "n is 2, must be 1");
  spec = base(4, 4);
  spec.fork_of = SequenceId{5};
  refuse(spec, StatusCode::not_found, "sequence 5, which it forks, is not held");
  spec.fork_of = hold_document(w, 20);
  spec.fork_tokens = 21;
  refuse(spec, StatusCode::invalid_argument, "fork_tokens is 21");
  spec.fork_tokens = 0;
  refuse(spec, StatusCode::invalid_argument, "fork_tokens is 0");
  EXPECT_TRUE(w.scheduler().idle());
  w.scheduler().abort(*spec.fork_of);  // as good as a release
  w.expect_empty();
}

}  // namespace
}  // namespace fovea
