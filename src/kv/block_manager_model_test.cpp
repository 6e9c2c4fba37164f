// Random operations on BlockManager, carried out on a small memory and compared with the naive model.
#include "kv/naive_sequences_test_util.h"

namespace fovea::testing {
namespace {

class Machine : public NaiveSequences {
 public:
  Machine(uint32_t seed, int32_t num_blocks, int32_t swap_slots)
      : NaiveSequences(seed, {num_blocks, kBlockSize, swap_slots}, 9),
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

  void check() {
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
    free_all();
    check();
    EXPECT_EQ(blocks_.num_free(), blocks_.num_blocks());
    EXPECT_EQ(blocks_.num_swap_free() * kBlockSize, static_cast<int32_t>(swap_.size()));
  }

  int64_t copies = 0, moves = 0;

 private:
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

  Status grow(SequenceId seq, int64_t n) override {
    const int64_t needed = blocks_.blocks_needed(seq, n), free = blocks_.num_free();
    EXPECT_EQ(n <= blocks_.max_append(seq), needed <= free);
    const auto now = blocks_.table(seq).places();
    const std::vector<BlockPlace> before(now.begin(), now.end());
    const Status s = blocks_.append_slots(seq, n, &ops_);
    EXPECT_EQ(s.ok(), needed <= free);
    if (!s.ok()) {
      EXPECT_TRUE(ops_.empty());
      EXPECT_TRUE(std::equal(before.begin(), before.end(), blocks_.table(seq).places().begin()));
      return s;
    }
    EXPECT_EQ(blocks_.num_free(), free - needed);
    carry_out();
    return s;
  }
  uint64_t& slot(SequenceId seq, int64_t position) override {
    return memory_[static_cast<size_t>(blocks_.slot_of(seq, position))];
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

  void leftovers() {
    const int64_t free = blocks_.num_free();
    const int64_t moved = blocks_.swap_out_leftovers(&ops_);
    ASSERT_EQ(moved, blocks_.num_free() - free);
    carry_out();
  }

  std::vector<uint64_t> memory_;
  std::vector<uint64_t> swap_;
};

int64_t run(uint32_t seed, int32_t num_blocks, int32_t swap_slots, int steps) {
  Machine machine(seed, num_blocks, swap_slots);
  for (int i = 0; i < steps; ++i) {
    machine.step();
    machine.check();
    if (!::testing::Test::HasFailure()) continue;
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
}  // namespace fovea::testing
