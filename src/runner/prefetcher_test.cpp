// A method whose wants a test sets, against a real cache and a store in RAM: what it wants comes before it is looked for, within
// the bounds.
#include "runner/prefetcher.h"

#include "kernels/ref/ref_ops.h"
#include "kv/kv_cache.h"
#include "store/memory_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <thread>

namespace fovea {
namespace {

constexpr int32_t kLayers = 2, kHeads = 2, kBlocks = 40, kColumns = 16, kBlockSize = 8, kDim = 16;

std::byte mark(uint32_t block, uint32_t unit) { return std::byte(1 + (block * 4 + unit) % 250); }

struct Marks final : BlockBytes {
  explicit Marks(size_t bytes) : bytes(bytes) {}
  void copy(uint32_t block, uint16_t, uint32_t unit, std::byte* to) const override {
    std::memset(to, int(mark(block, unit)), bytes);
  }
  size_t bytes;
};

struct Wanting final : Method {
  std::string_view name() const override { return "wanting"; }
  std::string lineage() const override { return "dense"; }
  Status attach(const ModelShape&, const MethodLimits&, Device&, StepMemory&) override { return {}; }
  Status select(const SelectInputs&, Ops&, Stream&, Selection*) override { return {}; }
  int64_t estimate_blocks(int64_t, int32_t) const override { return 1; }
  void take_wants(LayerIdx layer, std::vector<Want>* wants) override {
    for (Want w : told) wants->push_back((w.layer = layer, w));
  }
  std::vector<Want> told;
};

class PrefetcherTest : public testing::Test {
 protected:
  PrefetcherTest() : store_(int64_t{64} << 20), ops_(make_ref_ops()), policy_(LayerPolicy::make(kLayers, {}, {1}).value()) {
    KvCacheConfig c;
    c.num_layers = kLayers, c.num_blocks = kBlocks, c.num_slots = kColumns;
    c.block_size = kBlockSize, c.kv_heads = kHeads, c.head_dim = kDim, c.joined = true;
    kv_ = KvCache::create(c).value();
    const auto bytes = static_cast<uint32_t>(kv_->plane(KvCache::kJoined).head_bytes());
    cache_ = ExtentCache::create(*kv_, {.max_seqs = 1, .max_blocks = kBlocks, .poison_evicted = true}).value();
    EXPECT_TRUE(store_.open_layout({kBlockSize, {{"kv", kLayers * kHeads, bytes, false}}}).ok());
    homes_.located.resize(kBlocks), homes_.keys.resize(kBlocks);
    Marks marks(bytes);
    PutRun run{.last_tokens = kBlockSize, .bytes = &marks};
    for (int32_t b = 0; b < kBlocks; ++b) run.keys.emplace_back().bytes[0] = static_cast<uint8_t>(b + 1);
    homes_.keys = run.keys;
    run.done = [&](Status, std::span<const Located> located) { std::copy(located.begin(), located.end(), homes_.located.begin()); };
    EXPECT_TRUE(store_.put(std::move(run)).ok());
    blocks_.resize(kBlocks);
    std::iota(blocks_.rbegin(), blocks_.rend(), 0);  // logical block b is block kBlocks - 1 - b
    start({.max_pending = 8, .max_unused = 64, .landings = 64});
    group_.blocks = RowGroup::Blocks::mobile;
    group_.table = {blocks_.data(), kBlocks, 0};
    group_.method = &method_;
    group_.policy = &policy_;
    group_.step.rows = 1;
    group_.step.row_seq = &row_seq_, group_.step.row_len = &row_len_, group_.step.row_sequence = &sequence_;
    read(0, {0});  // the first wave: before it nothing is older than what was just read
    prefetcher_->begin_step();
  }

  void start(const prefetch::CoreLimits& limits) {
    prefetcher_.reset();
    prefetcher_ = std::make_unique<Prefetcher>(store_, *cache_, homes_, limits, clock_);
    cache_->set_source(&prefetcher_->engine(), &homes_);
  }
  Want want(int32_t head, int32_t logical, int32_t steps = 1) {
    return {sequence_, LayerIdx{0}, KvHeadIdx{head}, logical, 0, steps};
  }
  void tell(int32_t layer, std::vector<Want> wants) {
    method_.told = std::move(wants);
    prefetcher_->tell(group_, LayerIdx{layer});
  }
  void wait_for_reads(int64_t reads) {
    while (prefetcher_->engine().counters().read < reads) std::this_thread::yield();
    prefetcher_->collect();
  }
  // Extents that a row that reads these logical blocks in all heads misses.
  int64_t read(int32_t layer, std::vector<int32_t> logical) {
    std::vector<int32_t> units, counts(kHeads, static_cast<int32_t>(logical.size()));
    for (int32_t h = 0; h < kHeads; ++h) units.insert(units.end(), logical.begin(), logical.end());
    Selection s{.kind = Selection::Kind::list, .heads = HeadGroups::per_kv_head, .tokens_per_unit = kBlockSize};
    s.rows = 1, s.groups = kHeads, s.capacity = counts[0], s.units = units.data(), s.counts = counts.data();
    ExtentCache::Wave wave{
        .selection = &s, .first = 0, .end = 1, .row_seq = &row_seq_, .row_len = &row_len_, .blocks = {blocks_.data(), kBlocks, 0}};
    PageTableView table;
    cache_->take_counts();
    EXPECT_TRUE(cache_->resolve(LayerIdx{layer}, wave, *ops_, stream_, &table).ok());
    for (int32_t h = 0; h < kHeads; ++h) {
      for (int32_t unit : logical) {
        const int32_t column = table.slots[h * table.head_stride + unit];
        const std::byte* k =
            kv_->plane(KvCache::kJoined).block(LayerIdx{layer}, BlockId{column}) + h * kv_->plane(KvCache::kJoined).head_bytes();
        EXPECT_EQ(*k, mark(static_cast<uint32_t>(blocks_[unit]), static_cast<uint32_t>(layer * kHeads + h)));
      }
    }
    return cache_->take_counts().misses;
  }

  MemoryStore store_;
  BlockHomes homes_;
  std::unique_ptr<KvCache> kv_;
  std::unique_ptr<ExtentCache> cache_;
  std::unique_ptr<Ops> ops_;
  CpuStream stream_;
  Clock clock_;
  LayerPolicy policy_;
  Wanting method_;
  std::vector<int32_t> blocks_;
  int32_t row_seq_ = 0, row_len_ = kBlocks * kBlockSize;
  SequenceId sequence_{7};
  RowGroup group_;
  std::unique_ptr<Prefetcher> prefetcher_;
};

TEST_F(PrefetcherTest, WhatIsToldIsThereWhenItIsLookedFor) {
  tell(0, {want(0, 5), want(1, 5), want(0, 9)});
  EXPECT_NE(prefetcher_->state(sequence_), PrefetchState::none);
  wait_for_reads(3);
  EXPECT_EQ(prefetcher_->state(sequence_), PrefetchState::ready);
  EXPECT_EQ(read(0, {5, 9}), 1) << "head 1 of 9";
  prefetcher_->end_step();
  prefetcher_->begin_step();
  EXPECT_EQ(prefetcher_->state(sequence_), PrefetchState::none);
  EXPECT_EQ(prefetcher_->engine().counters().hit, 3);
  EXPECT_EQ(prefetcher_->engine().counters().wasted, 0);
  EXPECT_TRUE(cache_->tables().check_consistency().ok());
}

TEST_F(PrefetcherTest, ALayerThatReusesAChoiceWantsTheSameBlocks) {
  tell(0, {want(0, 5)});
  tell(1, {});
  wait_for_reads(2);
  EXPECT_EQ(read(1, {5}), 1) << "head 1";
  EXPECT_EQ(read(0, {5}), 1);
}

TEST_F(PrefetcherTest, WhatThePoolAloneHoldsIsNotAskedFor) {
  homes_.located[static_cast<size_t>(blocks_[5])] = Located{};
  tell(0, {want(0, 5)});
  EXPECT_EQ(prefetcher_->engine().counters().submitted, 0);
}

TEST_F(PrefetcherTest, UnusedExtentsOfAHeadAreBounded) {
  std::vector<Want> wants;
  for (int32_t b = 1; b < 12; ++b) wants.push_back(want(0, b));
  tell(0, wants);
  wait_for_reads(kColumns / 4);
  EXPECT_EQ(prefetcher_->engine().counters().submitted, kColumns / 4);
  EXPECT_EQ(prefetcher_->stats().left_out, 11 - kColumns / 4);
  tell(0, {want(0, 20)});
  EXPECT_EQ(prefetcher_->engine().counters().submitted, kColumns / 4) << "none of them was used";
  EXPECT_EQ(read(0, {1, 2, 3, 4}), 4) << "of head 1";
  prefetcher_->end_step();
  prefetcher_->begin_step();
  tell(0, {want(0, 20)});
  EXPECT_EQ(prefetcher_->engine().counters().submitted, kColumns / 4 + 1);
}

TEST_F(PrefetcherTest, GuessesEndWithTheirStepsAndTicketsWithTheirSequence) {
  tell(0, {want(0, 5, 2)});
  wait_for_reads(1);
  for (int32_t b = 10; b < 10 + 2 * kColumns; ++b) read(0, {b % kBlocks});
  prefetcher_->end_step();
  prefetcher_->begin_step();
  EXPECT_EQ(prefetcher_->engine().counters().wasted, 1) << "evicted before it was used";
  prefetcher_->cancel(sequence_);
  EXPECT_EQ(prefetcher_->state(sequence_), PrefetchState::none);
  EXPECT_EQ(prefetcher_->engine().unused_room(), 64);
}

// What is known to be read is asked for in every step, also of a request that stands far back in the queue.
TEST_F(PrefetcherTest, GuessesThatAreNeverReadBecomeRareAndNothingElse) {
  for (const bool guess : {true, false}) {
    const int64_t begun = prefetcher_->engine().counters().submitted;
    int64_t before = 0;
    for (int32_t step = 0; step < 64; ++step) {
      std::vector<Want> wants;
      for (int32_t i = 0; i < 6; ++i) wants.push_back(want(i % 2, 20 + (step * 3 + i) % 20));
      for (Want& w : wants) w.priority = 3, w.guess = guess;
      tell(0, wants);
      while (prefetcher_->state(sequence_) == PrefetchState::pending) prefetcher_->collect();
      for (int32_t b = 0; b < kColumns; ++b) read(0, {b});  // nothing of it stays
      prefetcher_->end_step();
      prefetcher_->begin_step();
      if (step == 31) before = prefetcher_->engine().counters().submitted;
    }
    EXPECT_GT(before - begun, 64);
    const int64_t later = prefetcher_->engine().counters().submitted - before;
    if (guess) {
      EXPECT_LE(later, 2 * 6) << "two of 32 steps";
    } else {
      EXPECT_EQ(later, 32 * 6);
    }
  }
}

TEST_F(PrefetcherTest, WhatWasLateComesForTheNextStep) {
  const ExtentCache::Late late[] = {{0, BlockId{3}}, {1, BlockId{4}}};
  prefetcher_->late(group_, LayerIdx{0}, late);
  wait_for_reads(2);
  EXPECT_EQ(read(0, {kBlocks - 1 - 3}), 1);
  EXPECT_EQ(read(0, {kBlocks - 1 - 4}), 1);
  prefetcher_->skipped(sequence_, 2);
  prefetcher_->skipped(sequence_, 3);
  EXPECT_EQ(prefetcher_->take_stats(sequence_).skipped, 5);
  EXPECT_EQ(prefetcher_->take_stats(sequence_).skipped, 0);
}

struct StillClock final : Clock {
  double now_s() const override { return now; }
  double now = 100;
};

// Steps take 8 s here: 2 s in all may be waited for, in each of two layers 1 s.
TEST_F(PrefetcherTest, LayersAndWavesShareAQuarterOfAStep) {
  StillClock clock;
  Prefetcher prefetcher(store_, *cache_, homes_, {.max_pending = 8, .max_unused = 64, .landings = 64}, clock, /*threaded=*/false);
  prefetcher.begin_step();
  EXPECT_EQ(prefetcher.deadline_s(1), 1e30) << "before the first step has ended nobody knows";
  clock.now += 8;
  prefetcher.end_step();
  prefetcher.begin_step();
  EXPECT_DOUBLE_EQ(prefetcher.deadline_s(1), 109);
  EXPECT_DOUBLE_EQ(prefetcher.deadline_s(0.25), 108.25);
}

TEST(PrefetchLimits, AreTheLargestOfMethodsThatPrefetch) {
  GsaOptions a, b, off;
  a.max_pending_prefetch = 5, a.prefetch_cache_size = 10;
  b.max_pending_prefetch = 3, b.prefetch_cache_size = 20;
  off.prefetch = false, off.max_pending_prefetch = 99;
  const auto limits = prefetch_limits(std::vector<const GsaOptions*>{&a, &b, &off}, 12);
  ASSERT_TRUE(limits);
  EXPECT_EQ(limits->max_pending, 5);
  EXPECT_EQ(limits->max_unused, 240);
  EXPECT_FALSE(prefetch_limits(std::vector<const GsaOptions*>{&off}, 12));
}

}  // namespace
}  // namespace fovea
