// Random operations on BlockManager, carried out on a small memory and compared with a naive model that gives
// every sequence memory of its own. Each slot holds a hash of the token history that was written there, so a
// wrong page table, a missing copy on write, a stale prefix hit or a misplaced swap reads back wrong.
#include "kv/block_manager.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace fovea {
namespace {

constexpr int32_t kBlockSize = 4;

struct Naive {
  std::vector<int32_t> tokens;
  std::vector<uint64_t> content;  // what the slot of each position has to hold
  int64_t prefilled = 0;          // leading tokens written by prefill
  bool swapped = false;
};

class Machine {
 public:
  Machine(uint32_t seed, int32_t num_blocks, int32_t swap_slots)
      : random_(seed),
        hasher_(context()),
        blocks_({num_blocks, kBlockSize, swap_slots}),
        memory_(static_cast<size_t>(num_blocks) * kBlockSize),
        swap_(static_cast<size_t>(swap_slots) * kBlockSize) {}

  void step() {
    switch (pick(10)) {
      case 0:
        create();
        break;
      case 1:
        fork();
        break;
      case 2:
      case 3:
        append(true);
        break;
      case 4:
      case 5:
        append(false);
        break;
      case 6:
        swap_out();
        break;
      case 7:
        swap_in();
        break;
      case 8:
        free();
        break;
      case 9:
        leftovers();
        break;
    }
  }

  void check() const {
    const Status s = blocks_.check_consistency();
    ASSERT_TRUE(s.ok()) << s.message();
    int64_t used_slots = 0;
    for (const auto& [id, naive] : model_) {
      ASSERT_EQ(blocks_.num_tokens(SequenceId{id}), static_cast<int64_t>(naive.tokens.size()));
      if (naive.swapped) continue;
      for (size_t p = 0; p < naive.content.size(); ++p) {
        ASSERT_EQ(memory_[blocks_.slot_of(SequenceId{id}, p)], naive.content[p]) << "sequence " << id << " at " << p;
      }
      used_slots = std::max<int64_t>(used_slots, naive.tokens.size());
    }
    const auto usage = blocks_.usage();
    ASSERT_LE(usage.used_slots, usage.allocated_slots);
    ASSERT_GE(usage.used_slots, used_slots);
  }

  void finish() {
    while (!model_.empty()) {
      blocks_.free(SequenceId{model_.begin()->first});
      model_.erase(model_.begin());
    }
    check();
    EXPECT_EQ(blocks_.num_free(), blocks_.num_blocks());
    EXPECT_EQ(blocks_.num_swap_free() * kBlockSize, static_cast<int32_t>(swap_.size()));
  }

  int64_t hits = 0, tails = 0, copies = 0, moves = 0, refusals = 0;

 private:
  static KeyContext context() {
    KeyContext c;
    c.block_size = kBlockSize;
    return c;
  }

  uint32_t pick(uint32_t n) { return random_() % n; }

  Naive* any(uint64_t* id, bool swapped) {
    std::vector<uint64_t> ids;
    for (const auto& [i, naive] : model_) {
      if (naive.swapped == swapped) ids.push_back(i);
    }
    if (ids.empty()) return nullptr;
    *id = ids[pick(static_cast<uint32_t>(ids.size()))];
    return &model_[*id];
  }

  void carry_out() {
    for (const CacheOp& op : ops_) {
      const auto column = [](std::vector<uint64_t>& m, int32_t i) { return m.begin() + int64_t{i} * kBlockSize; };
      const auto block = column(memory_, op.block.value);
      if (op.kind == CacheOp::Kind::copy) std::copy_n(block, kBlockSize, column(memory_, op.to.value));
      if (op.kind == CacheOp::Kind::swap_out) std::copy_n(block, kBlockSize, column(swap_, op.slot.value));
      if (op.kind == CacheOp::Kind::swap_in) std::copy_n(column(swap_, op.slot.value), kBlockSize, block);
      ++(op.kind == CacheOp::Kind::copy ? copies : moves);
    }
    ops_.clear();
  }

  void create() {
    if (model_.size() >= 9) return;
    const uint64_t id = next_id_++;
    Naive naive;
    std::vector<int32_t> prompt;  // of few documents, so that prefixes meet
    const auto document = static_cast<int32_t>(pick(3));
    for (uint32_t i = 0, n = 1 + pick(30); i < n; ++i) prompt.push_back(pick(40) == 0 ? 7 : document);
    blocks_.create_sequence(SequenceId{id}, &hasher_);
    const int64_t hit = blocks_.match_prefix(SequenceId{id}, prompt);
    ASSERT_LE(hit, static_cast<int64_t>(prompt.size()));
    hits += hit > 0;
    tails += hit % kBlockSize != 0;
    for (int64_t p = 0; p < hit; ++p) extend(naive, prompt[p], true);
    naive.prefilled = hit;
    model_[id] = naive;
  }

  // The content of a prefilled slot is a function of the tokens alone, so that a hit must find it; a decoded
  // slot's is not.
  void extend(Naive& naive, int32_t token, bool prefill) {
    const uint64_t before = naive.content.empty() ? 1469598103934665603u : naive.content.back();
    naive.tokens.push_back(token);
    naive.content.push_back((before ^ static_cast<uint64_t>(token + 1)) * 1099511628211u + (prefill ? 0 : random_()));
  }

  void append(bool prefill) {
    uint64_t id = 0;
    Naive* naive = any(&id, false);
    if (naive == nullptr) return;
    const SequenceId seq{id};
    const int64_t n = prefill ? pick(14) : 1;
    const int64_t needed = blocks_.blocks_needed(seq, n);
    const int64_t free = blocks_.num_free();
    ASSERT_EQ(n <= blocks_.max_append(seq), needed <= free);
    const auto now = blocks_.table(seq).places();
    const std::vector<BlockPlace> before(now.begin(), now.end());
    const Status s = blocks_.append_slots(seq, n, &ops_);
    ASSERT_EQ(s.ok(), needed <= free);
    if (!s.ok()) {
      ++refusals;
      ASSERT_TRUE(ops_.empty());
      ASSERT_TRUE(std::equal(before.begin(), before.end(), blocks_.table(seq).places().begin()));
      return;
    }
    ASSERT_EQ(blocks_.num_free(), free - needed);
    carry_out();
    const auto first = static_cast<int64_t>(naive->tokens.size());
    for (int64_t i = 0; i < n; ++i) {
      extend(*naive, naive->tokens.empty() ? static_cast<int32_t>(pick(3)) : naive->tokens[0], prefill);
      memory_[blocks_.slot_of(seq, first + i)] = naive->content.back();
    }
    if (prefill && naive->prefilled == first) naive->prefilled = first + n;
    const bool all = naive->prefilled == static_cast<int64_t>(naive->tokens.size());
    blocks_.publish(seq, naive->tokens, naive->prefilled, all && pick(2) == 0);
  }

  void fork() {
    uint64_t id = 0;
    Naive* naive = any(&id, false);
    if (naive == nullptr || model_.size() >= 9) return;
    const auto size = static_cast<uint32_t>(naive->tokens.size());
    const uint32_t at = pick(2) == 0 ? size : pick(size + 1);
    const uint64_t child = next_id_++;
    blocks_.fork(SequenceId{id}, SequenceId{child}, at);
    Naive copy = *naive;
    copy.tokens.resize(at);
    copy.content.resize(at);
    copy.prefilled = std::min<int64_t>(copy.prefilled, at);
    model_[child] = copy;
  }

  void swap_out() {
    uint64_t id = 0;
    Naive* naive = any(&id, false);
    if (naive == nullptr) return;
    naive->swapped = blocks_.swap_out(SequenceId{id}, &ops_).ok();
    refusals += !naive->swapped;
    carry_out();
  }

  void swap_in() {
    uint64_t id = 0;
    Naive* naive = any(&id, true);
    if (naive == nullptr) return;
    const int64_t needed = blocks_.swap_in_blocks(SequenceId{id}, 0);
    const int64_t with_append = blocks_.swap_in_blocks(SequenceId{id}, 3);
    const int64_t free = blocks_.num_free();
    const Status s = blocks_.swap_in(SequenceId{id}, &ops_);
    ASSERT_EQ(s.ok(), needed <= free);
    refusals += !s.ok();
    naive->swapped = !s.ok();
    carry_out();
    if (!s.ok()) return;
    ASSERT_EQ(blocks_.num_free(), free - needed);
    ASSERT_EQ(blocks_.blocks_needed(SequenceId{id}, 3), with_append - needed);
  }

  void free() {
    uint64_t id = 0;
    if (any(&id, pick(4) == 0) == nullptr) return;
    blocks_.free(SequenceId{id});
    model_.erase(id);
  }

  void leftovers() {
    const int64_t free = blocks_.num_free();
    const int64_t moved = blocks_.swap_out_leftovers(&ops_);
    ASSERT_EQ(moved, blocks_.num_free() - free);
    carry_out();
  }

  std::mt19937 random_;
  BlockHasher hasher_;
  BlockManager blocks_;
  std::vector<uint64_t> memory_;
  std::vector<uint64_t> swap_;
  std::vector<CacheOp> ops_;
  std::map<uint64_t, Naive> model_;
  uint64_t next_id_ = 1;
};

int64_t run(uint32_t seed, int32_t num_blocks, int32_t swap_slots, int steps) {
  Machine machine(seed, num_blocks, swap_slots);
  for (int i = 0; i < steps; ++i) {
    machine.step();
    machine.check();
    if (!::testing::Test::HasFatalFailure()) continue;
    ADD_FAILURE() << "seed " << seed << " step " << i;
    return 0;
  }
  machine.finish();
  // The run has met what it is for.
  EXPECT_GT(machine.hits, 0);
  EXPECT_GT(machine.copies, 0);
  EXPECT_GT(machine.refusals, 0);
  EXPECT_EQ(machine.moves > 0, swap_slots > 0);
  return machine.tails;
}

TEST(BlockManagerModel, StarvedPool) {
  int64_t tails = 0;
  for (uint32_t seed = 1; seed <= 5; ++seed) tails += run(seed, 16, 12, 3000);
  EXPECT_GT(tails, 0);
}
TEST(BlockManagerModel, TinyPool) { run(77, 6, 4, 4000); }
TEST(BlockManagerModel, NoSwapSpace) { run(5, 24, 0, 3000); }
TEST(BlockManagerModel, AmplePool) { EXPECT_GT(run(6, 60, 20, 3000), 0); }

}  // namespace
}  // namespace fovea
