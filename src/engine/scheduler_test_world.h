// The scheduler against a fake executor. Its "model" keeps one number per token in a store indexed by slot,
// and every row reads back the numbers of its whole history through the page table, as attention does: a
// wrong table, a missing copy, a block freed too early or a column swapped to the wrong place changes the
// tokens that come out. Numbers that a sparse row writes differ from those a dense row writes, so a
// recomputed sparse row shows up as well.
#pragma once

#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace fovea {

inline constexpr int32_t kBlockSize = 4;

inline uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// What a row writes: a function of its token, its position, all numbers before it, and the kind of its
// attention (0: dense).
inline constexpr uint64_t kSparseRow = 0x5eed;

inline uint64_t written(int32_t token, int64_t position, uint64_t sum_before, uint64_t kind) {
  return mix(mix(static_cast<uint64_t>(token) * 1000003 + static_cast<uint64_t>(position)) ^ sum_before ^ kind);
}

// A row of a sparse prefill that computes positions [first, end) in one chunk: what it writes depends on the rows of its
// tile that are computed with it.
inline uint64_t tile_kind(int64_t position, int32_t tile, int64_t first, int64_t end) {
  const int64_t begin = position / tile * tile;
  return mix(static_cast<uint64_t>(std::max(begin, first)) * 1009 + static_cast<uint64_t>(std::min(begin + tile, end)));
}

inline int32_t sampled_token(uint64_t sum, SequenceId seq) { return static_cast<int32_t>(mix(sum ^ mix(seq.value)) % 1000); }

inline constexpr int32_t kStopBelow = 30;  // tokens that end an answer

// One answer computed alone, in memory of its own.
struct Alone {
  std::vector<int32_t> tokens;
  std::vector<uint64_t> numbers;  // of the tokens computed so far
  uint64_t sum = 0;

  void compute(uint64_t kind) {
    const size_t p = numbers.size();
    numbers.push_back(written(tokens[p], static_cast<int64_t>(p), sum, kind));
    sum += numbers.back();
  }
  void forget_from(size_t p) {
    numbers.resize(p);
    sum = 0;
    for (uint64_t number : numbers) sum += number;
  }
};

// Methods of which only the rules matter: a decode method that keeps three blocks, a prefill method of tiles.
class FakeMethod final : public Method {
 public:
  explicit FakeMethod(int32_t tile) : tile_(tile) {}
  std::string_view name() const override { return "fake"; }
  std::string lineage() const override { return "fake"; }
  int32_t prefill_alignment() const override { return tile_; }
  Status attach(const ModelShape&, const MethodLimits&, Device&, StepMemory&) override { return {}; }
  Status select(const SelectInputs&, Ops&, Stream&, Selection*) override { return {}; }
  int64_t estimate_blocks(int64_t, int32_t) const override { return 3; }

 private:
  const int32_t tile_;
};

inline constexpr Route kSparse{1}, kTiled{2};

// A request as the tests write it.
struct Spec : SequenceSpec {
  bool sparse = false;  // its decode method keeps three blocks, from min_context keys up
  int32_t min_context = 16;
  int32_t tile = 0;  // of its sparse prefill; 0: dense

  void choose_methods() {
    static const FakeMethod sparse_method(1);
    static std::map<int32_t, FakeMethod> of_tiles;
    methods.decode = sparse ? &sparse_method : nullptr;
    methods.decode_route = sparse ? kSparse : Route{};
    methods.prefill = tile > 0 ? &of_tiles.try_emplace(tile, tile).first->second : nullptr;
    methods.prefill_route = tile > 0 ? kTiled : Route{};
    methods.min_context = min_context;
    methods.block_size = kBlockSize;
  }
};

struct Expected {
  Spec spec;
  int64_t extend_from = 0;
  int32_t tile = 0;  // of its sparse prefill; 0: dense
  int64_t prefilled = 0;
  std::vector<int32_t> answer;  // generated tokens that must come out
  Alone end;                    // its state when it finished: what a fork of it starts from
};

// A store below the pool: the numbers of every block that was published, by key.
class FakeStore final : public ChainSource {
 public:
  StoredChain find(BlockHasher& hasher, const BlockKey* parent, std::span<const int32_t> tokens, int64_t alignment) override {
    StoredChain chain;
    const auto next = [&](size_t n) {
      const BlockKey key = hasher.key(chain.keys.empty() ? parent : &chain.keys.back(), tokens.subspan(chain.tokens, n));
      if (!stored.contains(key)) return false;
      chain.keys.push_back(key);
      chain.tokens += static_cast<int64_t>(n);
      return true;
    };
    while (chain.tokens + kBlockSize <= static_cast<int64_t>(tokens.size()) && next(kBlockSize)) {
    }
    if (alignment > 1) {
      chain.tokens = chain.tokens / alignment * alignment;
      chain.keys.resize(static_cast<size_t>(chain.tokens / kBlockSize));
      return chain;
    }
    const size_t left = tokens.size() - static_cast<size_t>(chain.tokens);
    for (size_t n = std::min<size_t>(kBlockSize - 1, left); n > 0 && !next(n); --n) {
    }
    return chain;
  }

  std::map<BlockKey, std::vector<uint64_t>> stored;
};

class World {
 public:
  struct Config {
    SchedulerConfig scheduler;
    int32_t num_blocks = 64;
    int32_t swap_slots = 64;
    bool hasher = true;
    uint32_t seed = 1;
    FakeStore* store = nullptr;  // outlives the world
    uint32_t bad_blocks = 0;     // of 100 loaded ones
  };

  explicit World(const Config& config)
      : config_(config),
        hasher_(context("dense")),
        sparse_hasher_(context("sparse")),
        blocks_({config.num_blocks, kBlockSize, config.swap_slots}),
        scheduler_(std::make_unique<Scheduler>(config.scheduler, blocks_, config.store)),
        memory_(static_cast<size_t>(config.num_blocks) * kBlockSize),
        swap_(static_cast<size_t>(config.swap_slots) * kBlockSize) {
    if (config.store) blocks_.note_published(&published_);
  }

  // Adds a request of n answers; returns its first id (the others follow it).
  SequenceId add(Spec spec, int32_t n = 1) {
    const SequenceId first{next_id_};
    for (int32_t i = 0; i < n; ++i) spec.answers.push_back(SequenceId{next_id_++});
    if (config_.hasher) spec.hasher = spec.tile > 0 ? &sparse_hasher_ : &hasher_;
    spec.choose_methods();
    const Status s = scheduler_->add(spec);
    EXPECT_TRUE(s.ok()) << s.message();
    for (SequenceId id : spec.answers) expected_[id] = compute_alone(spec, id);
    return first;
  }

  Spec prompt(int32_t n, int32_t max_new, std::string key = "") {
    Spec spec;
    spec.queue_key = std::move(key);
    spec.max_new_tokens = max_new;
    for (int32_t i = 0; i < n; ++i) spec.prompt.push_back(static_cast<int32_t>(random_() % 1000) + 1000);
    return spec;
  }

  // One step; false when there was nothing to run.
  bool step() {
    if (config_.store) do_io();
    const StepPlan& plan = scheduler_->schedule();
    ++steps;
    check_plan(plan);
    carry_out(plan.cache_ops);
    for (SequenceId id : plan.preempted) ++preempted[id];
    for (const FoundPrompt& found : plan.complete) EXPECT_TRUE(finished.insert(found.seq).second);
    for (const auto& [id, status] : plan.failed) {
      EXPECT_EQ(status.code(), StatusCode::resource_exhausted);
      failed[id] = status;
    }
    loads_.insert(loads_.end(), plan.loads.begin(), plan.loads.end());
    if (plan.empty()) {
      EXPECT_TRUE(!plan.waits_for_io || !loads_.empty() || blocks_.num_pinned() > 0);
      return plan.waits_for_io;
    }
    std::vector<Sampled> sampled;
    for (const ScheduledRows& rows : plan.rows) execute(rows, &sampled);
    if (in_flight) in_flight();
    if (drop_aborted_samples) {
      std::erase_if(sampled, [&](const Sampled& s) { return aborted.count(s.seq) != 0; });
    }
    for (SequenceId id : scheduler_->commit(sampled)) {
      EXPECT_TRUE(finished.insert(id).second);
      if (aborted.count(id) == 0) {
        EXPECT_EQ(answers[id], expected_[id].answer) << "sequence " << id.value;
      }
    }
    take_published();
    const Status s = blocks_.check_consistency();
    EXPECT_TRUE(s.ok()) << s.message();
    return true;
  }

  void run(int max_steps = 100000) {
    for (int i = 0; i < max_steps && !scheduler_->idle(); ++i) {
      step();
      if (::testing::Test::HasFailure()) return;
    }
    EXPECT_TRUE(scheduler_->idle()) << "no end after " << max_steps << " steps";
  }

  void abort(SequenceId id) {
    aborted.insert(id);
    scheduler_->abort(id);
  }

  void expect_empty() {
    EXPECT_TRUE(scheduler_->idle());
    EXPECT_TRUE(loads_.empty());
    while (!stores_.empty()) store_one();
    EXPECT_EQ(blocks_.num_free(), blocks_.num_blocks());
    EXPECT_EQ(blocks_.num_swap_free(), config_.swap_slots);
  }

  const StepPlan& plan() { return last_plan; }
  Scheduler& scheduler() { return *scheduler_; }
  BlockManager& blocks() { return blocks_; }
  const Expected& expected(SequenceId id) { return expected_[id]; }
  std::mt19937& random() { return random_; }
  BlockHasher* hasher() { return &hasher_; }

  std::map<SequenceId, std::vector<int32_t>> answers;
  std::map<SequenceId, Status> failed;
  std::map<SequenceId, int> preempted;
  std::set<SequenceId> finished, aborted;
  std::function<void()> in_flight;  // called between schedule() and commit()
  bool drop_aborted_samples = false;
  uint32_t slow = 0;  // of 100 steps: those in which nothing is loaded or stored
  int64_t steps = 0;
  int64_t extend_rows = 0;
  StepPlan last_plan;

 private:
  static KeyContext context(const char* lineage) {
    KeyContext c;
    c.block_size = kBlockSize;
    c.lineage = lineage;
    return c;
  }

  // What was published is stored as it lay then; its blocks stay pinned for a while.
  void take_published() {
    for (const PublishedRun& run : published_) {
      for (BlockId b : run.blocks) blocks_.pin(b);
      stores_.push_back(run);
    }
    published_.clear();
  }

  void store_one() {
    const PublishedRun run = stores_.front();
    stores_.erase(stores_.begin());
    for (size_t i = 0; i < run.keys.size(); ++i) {
      const auto at = memory_.begin() + int64_t{run.blocks[i].value} * kBlockSize;
      const int64_t n = i + 1 == run.keys.size() ? run.last_tokens : kBlockSize;
      const auto [it, added] = config_.store->stored.try_emplace(run.keys[i], at, at + n);
      EXPECT_TRUE(added || std::equal(at, at + n, it->second.begin())) << "two contents under one key";
      blocks_.unpin(run.blocks[i]);
    }
  }

  void do_io() {
    if (random_() % 100 < slow) return;
    if (!stores_.empty()) store_one();
    if (loads_.empty()) return;
    const PlannedLoad load = loads_.front();
    loads_.erase(loads_.begin());
    int64_t tokens = 0;
    for (size_t i = 0; i < load.blocks.size() && tokens < load.chain.tokens; ++i) {
      if (!scheduler_->wants_load(load.id) || random_() % 100 < config_.bad_blocks) break;
      const std::vector<uint64_t>& numbers = config_.store->stored.at(load.chain.keys[i]);
      std::copy(numbers.begin(), numbers.end(), memory_.begin() + int64_t{load.blocks[i].value} * kBlockSize);
      tokens += static_cast<int64_t>(numbers.size());
    }
    scheduler_->loaded(load.id, tokens);
  }

  Expected compute_alone(const Spec& spec, SequenceId id) {
    Expected e;
    e.spec = spec;
    Alone alone;
    if (spec.fork_of.has_value()) {
      alone = expected_[*spec.fork_of].end;
      const auto at = static_cast<size_t>(spec.fork_tokens < 0 ? alone.numbers.size() : spec.fork_tokens);
      if (spec.fork_tokens >= 0) alone.tokens.resize(at);
      alone.forget_from(at);
    }
    e.tile = spec.fork_of.has_value() ? expected_[*spec.fork_of].tile : spec.tile;
    const auto& c = config_.scheduler;
    const auto forked = static_cast<int32_t>(alone.numbers.size());
    alone.tokens.insert(alone.tokens.end(), spec.prompt.begin(), spec.prompt.end());
    const bool extends = (spec.sparse || e.tile > 0) && forked > 0 && forked >= spec.min_context &&
                         static_cast<int32_t>(alone.tokens.size()) - forked <= c.sparse_extend_max_tokens;
    e.extend_from = extends ? forked : static_cast<int64_t>(alone.tokens.size());
    const auto prompt = static_cast<int64_t>(alone.tokens.size());
    const int64_t prefilled = forked > 0 ? std::min<int64_t>(expected_[*spec.fork_of].prefilled, forked) : 0;
    if (e.tile > 0 && !extends && prefilled == forked) alone.forget_from(static_cast<size_t>(forked / e.tile * e.tile));
    e.prefilled = extends || prefilled < forked ? prefilled : prompt;
    const auto first = static_cast<int64_t>(alone.numbers.size());
    while (alone.numbers.size() < alone.tokens.size()) {
      const auto p = static_cast<int64_t>(alone.numbers.size());
      alone.compute(extends ? (spec.sparse ? kSparseRow : 0) : e.tile > 0 ? tile_kind(p, e.tile, first, prompt) : 0);
    }
    for (int32_t i = 0; i < spec.max_new_tokens; ++i) {
      if (i > 0) {
        const auto keys = static_cast<int32_t>(alone.tokens.size());
        alone.compute(spec.sparse && keys >= spec.min_context ? kSparseRow : 0);
      }
      e.answer.push_back(sampled_token(alone.sum, id));
      alone.tokens.push_back(e.answer.back());
      if (e.answer.back() < kStopBelow) break;
    }
    e.end = alone;
    return e;
  }

  void check_plan(const StepPlan& plan) {
    last_plan = plan;
    std::set<SequenceId> seen;
    int32_t rows = 0;
    for (const ScheduledRows& r : plan.rows) {
      EXPECT_TRUE(seen.insert(r.seq).second);
      EXPECT_GE(r.num_tokens, 1);
      rows += r.num_tokens;
      if (r.phase == Phase::decode) {
        EXPECT_EQ(r.num_tokens, 1);
      }
      EXPECT_FALSE(r.phase == Phase::prefill && r.route == kSparse);
      const auto size = static_cast<int64_t>(scheduler_->tokens(r.seq).size());
      EXPECT_LE(r.first_position + r.num_tokens, size);
      EXPECT_EQ(blocks_.num_tokens(r.seq), r.first_position + r.num_tokens);
      extend_rows += r.phase == Phase::extend ? r.num_tokens : 0;
    }
    EXPECT_EQ(rows, plan.num_tokens);
    EXPECT_LE(rows, config_.scheduler.max_num_batched_tokens);
    EXPECT_LE(scheduler_->num_running(), config_.scheduler.max_num_seqs);
  }

  void carry_out(const std::vector<CacheOp>& ops) {
    for (const CacheOp& op : ops) {
      const auto column = [](std::vector<uint64_t>& m, int32_t i) { return m.begin() + int64_t{i} * kBlockSize; };
      const auto block = column(memory_, op.block.value);
      if (op.kind == CacheOp::Kind::copy) std::copy_n(block, kBlockSize, column(memory_, op.to.value));
      if (op.kind == CacheOp::Kind::swap_out) std::copy_n(block, kBlockSize, column(swap_, op.slot.value));
      if (op.kind == CacheOp::Kind::swap_in) std::copy_n(column(swap_, op.slot.value), kBlockSize, block);
    }
  }

  void execute(const ScheduledRows& rows, std::vector<Sampled>* sampled) {
    const auto tokens = scheduler_->tokens(rows.seq);
    uint64_t sum = 0;
    for (int64_t p = 0; p < rows.first_position; ++p) sum += memory_[blocks_.slot_of(rows.seq, p)];
    for (int64_t p = rows.first_position; p < rows.first_position + rows.num_tokens; ++p) {
      const int32_t tile = rows.phase == Phase::prefill ? expected_[rows.seq].tile : 0;
      const uint64_t kind = rows.route == kSparse ? kSparseRow : 0;
      const int64_t end = rows.first_position + rows.num_tokens;
      const uint64_t number = written(tokens[p], p, sum, tile > 0 ? tile_kind(p, tile, rows.first_position, end) : kind);
      memory_[blocks_.slot_of(rows.seq, p)] = number;
      sum += number;
    }
    for (SequenceId id : rows.sample_for) {
      const int32_t token = sampled_token(sum, id);
      auto& answer = answers[id];
      answer.push_back(token);
      const auto length = static_cast<int32_t>(answer.size());
      sampled->push_back({id, token, token < kStopBelow || length == expected_[id].spec.max_new_tokens});
    }
  }

  Config config_;
  std::mt19937 random_{config_.seed};
  BlockHasher hasher_, sparse_hasher_;
  BlockManager blocks_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<uint64_t> memory_, swap_;
  std::map<SequenceId, Expected> expected_;
  uint64_t next_id_ = 1;
  std::vector<PublishedRun> published_, stores_;
  std::vector<PlannedLoad> loads_;
};

inline World::Config config(int32_t batched, int32_t seqs, int32_t blocks, int32_t swap = 64) {
  World::Config c;
  c.scheduler.max_num_batched_tokens = batched;
  c.scheduler.max_num_seqs = seqs;
  c.scheduler.sparse_extend_max_tokens = 8;
  c.num_blocks = blocks;
  c.swap_slots = swap;
  return c;
}

inline const ScheduledRows* rows_of(const StepPlan& plan, SequenceId seq) {
  for (const ScheduledRows& r : plan.rows) {
    if (r.seq == seq) return &r;
  }
  return nullptr;
}

inline Spec question(World& w, SequenceId document, int32_t tokens, int32_t max_new, bool sparse) {
  Spec spec = w.prompt(tokens, max_new);
  spec.fork_of = document;
  spec.sparse = sparse;
  return spec;
}

inline SequenceId hold_document(World& w, int32_t tokens, bool sparse = false, int32_t max_new = 0) {
  Spec spec = w.prompt(tokens, max_new);
  spec.hold = true;
  spec.sparse = sparse;
  const SequenceId id = w.add(spec);
  w.run();
  EXPECT_TRUE(w.scheduler().is_held(id));
  return id;
}

}  // namespace fovea
