// Random arrivals, forks, aborts, releases and preemptions in a starved pool: every request gets the tokens
// that it gets alone, and no block leaks.
#include "engine/scheduler_test_world.h"

#include <gtest/gtest.h>

namespace fovea {
namespace {

struct SoakConfig {
  World::Config world;
  int arrivals = 300;
  bool sparse = true;
  bool hold = true;
  bool tiles = false;  // half of the prompts have a sparse prefill
  double abort_share = 0.04;
  bool may_fail = false;
  uint32_t slow = 0;
};

// What a run met, summed over seeds: each test checks that it met what it is for.
struct Met {
  int64_t recomputed = 0, swapped = 0, hits = 0, loaded = 0, finished = 0, failed = 0;
};

class Soak {
 public:
  explicit Soak(const SoakConfig& c) : c_(c), w_(c.world) { w_.slow = c.slow; }

  void run(Met* met) {
    for (int i = 0; i < c_.arrivals && !::testing::Test::HasFailure(); ++i) {
      arrive();
      while (held_.size() > 2 || (!held_.empty() && chance(0.1))) {
        w_.scheduler().release(held_.front());
        held_.erase(held_.begin());
      }
      for (size_t k = pick(4); k > 0; --k) step();
    }
    for (SequenceId id : held_) w_.scheduler().release(id);
    for (int i = 0; i < 100000 && !w_.scheduler().idle() && !::testing::Test::HasFailure(); ++i) step();
    if (::testing::Test::HasFailure()) FAIL() << "seed " << c_.world.seed;
    EXPECT_TRUE(live_.empty()) << live_.size() << " sequences never ended";
    w_.expect_empty();
    for (const auto& [id, status] : w_.failed) EXPECT_TRUE(c_.may_fail) << status.message();

    const SchedulerStats& stats = w_.scheduler().stats();
    met->recomputed += stats.preempted_recompute;
    met->swapped += stats.preempted_swap;
    met->hits += stats.prefix_hit_tokens;
    met->loaded += stats.loaded_tokens;
    met->finished += static_cast<int64_t>(w_.finished.size());
    met->failed += static_cast<int64_t>(w_.failed.size());
  }

 private:
  bool chance(double p) { return w_.random()() % 10000 < p * 10000; }
  size_t pick(size_t n) { return w_.random()() % n; }

  bool ended(SequenceId id) const { return w_.finished.count(id) + w_.failed.count(id) + w_.aborted.count(id) > 0; }

  void maybe_abort() {
    if (!live_.empty() && chance(c_.abort_share)) w_.abort(live_[pick(live_.size())]);
  }

  void step() {
    w_.in_flight = chance(0.5) ? std::function<void()>([this] { maybe_abort(); }) : nullptr;
    w_.drop_aborted_samples = chance(0.5);
    w_.step();
    maybe_abort();
    std::erase_if(live_, [&](SequenceId id) { return ended(id); });
  }

  void arrive() {
    const char* keys[] = {"", "a", "b"};
    const int32_t pool_tokens = c_.world.num_blocks * kBlockSize;
    const int32_t most = chance(0.1) ? pool_tokens : pool_tokens / 3;
    const auto max_new = static_cast<int32_t>(1 + pick(chance(0.7) ? 40 : 8));
    Spec spec = w_.prompt(1 + static_cast<int32_t>(pick(std::max(1, most - max_new))), max_new, keys[pick(3)]);
    spec.sparse = c_.sparse && chance(0.6);
    std::erase_if(held_, [&](SequenceId id) { return !w_.scheduler().is_held(id); });
    if (!held_.empty() && chance(0.6)) {
      ask_held(&spec);
    } else {
      if (c_.tiles && chance(0.5)) spec.tile = 2 * kBlockSize;
      if (!prompts_.empty() && chance(0.5)) repeat_prompt(&spec);
      prompts_.push_back(spec.prompt);
    }
    const auto n = chance(0.3) ? static_cast<int32_t>(1 + pick(3)) : 1;
    spec.hold = c_.hold && n == 1 && chance(c_.tiles ? 0.3 : 0.1);
    if (spec.hold && chance(0.5)) spec.max_new_tokens = 0;

    const SequenceId first = w_.add(spec, n);
    for (int32_t a = 0; a < n; ++a) live_.push_back(SequenceId{first.value + static_cast<uint64_t>(a)});
    if (!spec.hold) return;
    for (int k = 0; k < 500 && !ended(first); ++k) step();  // it can be forked once it is finished
    held_.push_back(first);
  }

  void ask_held(Spec* spec) {
    const SequenceId document = held_[pick(held_.size())];
    const int64_t computed = w_.blocks().num_tokens(document);
    spec->fork_of = document;
    if (chance(0.4)) spec->fork_tokens = 1 + static_cast<int64_t>(pick(static_cast<size_t>(computed)));
    const int64_t forked = spec->fork_tokens < 0 ? computed : spec->fork_tokens;
    const int64_t room = int64_t{c_.world.num_blocks} * kBlockSize - forked;
    spec->prompt.resize(std::min<size_t>(spec->prompt.size(), 1 + pick(c_.tiles ? 120 : 12)));
    if (room > static_cast<int64_t>(spec->prompt.size()) + spec->max_new_tokens) return;
    spec->prompt.resize(1);
    spec->max_new_tokens = 1;
    spec->fork_tokens = std::min<int64_t>(forked, int64_t{c_.world.num_blocks} * kBlockSize - 1);
  }

  void repeat_prompt(Spec* spec) {
    const auto& again = prompts_[prompts_.size() - 1 - pick(std::min<size_t>(prompts_.size(), 4))];
    const size_t shared = chance(0.5) ? again.size() : 1 + pick(again.size());
    std::copy_n(again.begin(), std::min(shared, spec->prompt.size()), spec->prompt.begin());
  }

  SoakConfig c_;
  World w_;
  std::vector<SequenceId> held_, live_;
  std::vector<std::vector<int32_t>> prompts_;
};

SoakConfig soak_config(uint32_t seed, int32_t batched, int32_t seqs, int32_t blocks, int32_t swap) {
  SoakConfig c;
  c.world = config(batched, seqs, blocks, swap);
  c.world.seed = seed;
  return c;
}

TEST(SchedulerSoak, DenseInAStarvedPool) {
  Met met;
  for (uint32_t seed = 1; seed <= 4 && !HasFailure(); ++seed) {
    SoakConfig c = soak_config(seed, 24, 6, 20, 0);
    c.sparse = c.hold = false;
    Soak(c).run(&met);
  }
  EXPECT_GT(met.recomputed, 50);
  EXPECT_GT(met.hits, 100);
  EXPECT_EQ(met.swapped, 0);
}

TEST(SchedulerSoak, SparseWithSwapSpaceNeverFails) {
  Met met;
  for (uint32_t seed = 11; seed <= 18 && !HasFailure(); ++seed) {
    SoakConfig c = soak_config(seed, 24, 6, 20, 400);
    c.hold = false;
    Soak(c).run(&met);
  }
  EXPECT_GT(met.recomputed, 50);
  EXPECT_GT(met.swapped, 50);
}

TEST(SchedulerSoak, DocumentsForksAndLittleSwapSpace) {
  Met met;
  for (uint32_t seed = 21; seed <= 30 && !HasFailure(); ++seed) {
    SoakConfig c = soak_config(seed, 20, 8, 24, 10);
    c.may_fail = true;
    Soak(c).run(&met);
  }
  EXPECT_GT(met.recomputed, 10);
  EXPECT_GT(met.swapped, 50);
  EXPECT_LT(met.failed, met.finished / 4);
}

TEST(SchedulerSoak, DecodesInTurnWithinACap) {
  Met met;
  for (uint32_t seed = 41; seed <= 46 && !HasFailure(); ++seed) {
    SoakConfig c = soak_config(seed, 24, 6, 20, 400);
    c.world.scheduler.max_step_kv_blocks = 1 + seed % 3 * 5;
    c.hold = false;
    Soak(c).run(&met);
  }
  EXPECT_GT(met.swapped, 10);
}

// Sparse prefills, and questions of many tiles on documents that were answered.
TEST(SchedulerSoak, TiledDocumentsWithAnswers) {
  Met met;
  for (uint32_t seed = 51; seed <= 54 && !HasFailure(); ++seed) {
    SoakConfig c = soak_config(seed, 20, 10, 90, 400);
    c.tiles = c.may_fail = true;
    Soak(c).run(&met);
  }
  EXPECT_GT(met.swapped, 10);
  EXPECT_LT(met.failed, met.finished / 4);
}

// What the pool had to forget comes back from a store, quickly, slowly, in part; other worlds begin with what it has.
TEST(SchedulerSoak, ChainsThatGoOnInAStore) {
  Met met;
  FakeStore store;
  for (uint32_t seed = 51; seed <= 60 && !HasFailure(); ++seed) {
    SoakConfig c = soak_config(seed, 24, 6, 24, 40);
    c.world.store = &store;
    c.world.bad_blocks = seed % 3 * 10;
    c.slow = seed % 4 * 30;
    c.may_fail = true;
    Soak(c).run(&met);
  }
  EXPECT_GT(met.loaded, 300);
  EXPECT_GT(met.recomputed, 10);
  EXPECT_GT(met.swapped, 10);
  EXPECT_LT(met.failed, met.finished / 4);
}

TEST(SchedulerSoak, ThousandArrivals) {
  Met met;
  SoakConfig c = soak_config(31, 32, 8, 24, 60);
  c.arrivals = 1000;
  c.may_fail = true;
  Soak(c).run(&met);
  EXPECT_GT(met.recomputed, 10);
  EXPECT_GT(met.swapped, 10);
  EXPECT_LT(met.failed, met.finished / 4);
}

}  // namespace
}  // namespace fovea
