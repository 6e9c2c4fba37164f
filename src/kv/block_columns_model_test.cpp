// Random operations on a BlockManager whose pool has fewer columns than there are blocks, carried out on a small memory, on
// residency tables and on a store, and compared with a naive model that gives every sequence memory of its own.
#include "kv/block_manager.h"
#include "kv/residency_tables.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <random>

namespace fovea {
namespace {

constexpr int32_t kBlockSize = 4;

struct Naive {
  std::vector<int32_t> tokens;
  std::vector<uint64_t> content;
  int64_t prefilled = 0;
  bool swapped = false;
};

class Machine {
 public:
  Machine(uint32_t seed, int32_t blocks, int32_t columns, int32_t reserve)
      : random_(seed),
        hasher_(context()),
        blocks_(
            {.num_blocks = blocks, .block_size = kBlockSize, .swap_slots = 8, .num_columns = columns, .reserve_columns = reserve}),
        tables_(1, 1, blocks, columns),
        columns_(columns),
        reserve_(reserve),
        memory_(static_cast<size_t>(columns) * kBlockSize),
        swap_(8 * kBlockSize) {}

  void step() {
    switch (pick(9)) {
      case 0:
        return create();
      case 1:
        return fork();
      case 2:
      case 3:
        return append(true);
      case 4:
        return append(false);
      case 5:
        return swap();
      case 6:
        return free();
      default:
        return store_some();
    }
  }

  void check() {
    ASSERT_EQ(blocks_.check_consistency().message(), "");
    blocks_.begin_step(&ops_);
    carry_out();
    ASSERT_EQ(tables_.check_consistency().message(), "");
    const ColumnPool& pool = *blocks_.columns();
    ASSERT_EQ(columns_ - tables_.num_mobile(), pool.num_pinned());
    if (pool.num_mobile() > 0) ASSERT_GE(tables_.num_mobile(), reserve_);
    mobile += pool.num_mobile();
    for (const auto& [id, naive] : model_) {
      for (size_t p = 0; p < naive.content.size() && !naive.swapped; ++p) {
        const BlockId block = blocks_.table(SequenceId{id}).block(static_cast<int32_t>(p / kBlockSize));
        ASSERT_EQ(content_of(block)[p % kBlockSize], naive.content[p]) << "sequence " << id << " at " << p;
      }
    }
  }

  void finish() {
    while (!model_.empty()) {
      blocks_.free(SequenceId{model_.begin()->first});
      model_.erase(model_.begin());
    }
    check();
    EXPECT_EQ(blocks_.num_free(), blocks_.num_blocks());
    EXPECT_EQ(blocks_.free_columns(), columns_ - (blocks_.columns()->num_mobile() > 0 ? reserve_ : 0));
  }

  int64_t mobile = 0, refusals = 0, returns = 0, swaps = 0;

 private:
  static KeyContext context() {
    KeyContext c;
    c.block_size = kBlockSize;
    return c;
  }
  uint32_t pick(uint32_t n) { return random_() % n; }
  std::vector<uint64_t>::iterator column(SlotId c) { return memory_.begin() + int64_t{c.value} * kBlockSize; }

  const uint64_t* content_of(BlockId block) {
    const SlotId at = blocks_.columns()->column_of(block);
    if (at != ColumnPool::kMobile) return &*column(at);
    return stored_.at(blocks_.columns()->homes().located[static_cast<size_t>(block.value)].slab).data();
  }

  void carry_out() {
    for (const CacheOp& op : ops_) {
      const auto slot = swap_.begin() + int64_t{op.slot.value} * kBlockSize;
      switch (op.kind) {
        case CacheOp::Kind::take:
          tables_.pin(op.column.value, op.block);
          std::fill_n(column(op.column), kBlockSize, 0xDEAD);
          break;
        case CacheOp::Kind::unpin:
          tables_.unpin(op.column.value);
          break;
        case CacheOp::Kind::forget:
          tables_.forget(op.block);
          break;
        case CacheOp::Kind::swap_out:
          std::copy_n(column(op.column), kBlockSize, slot);
          ++swaps;
          break;
        case CacheOp::Kind::swap_in:
          std::copy_n(slot, kBlockSize, column(op.column));
          break;
        case CacheOp::Kind::copy: {
          const bool back = op.column == ColumnPool::kMobile;
          returns += back;
          const uint32_t home = blocks_.columns()->homes().located[static_cast<size_t>(op.block.value)].slab;
          const auto from = back ? stored_.at(home).begin() : column(op.column);
          std::copy_n(from, kBlockSize, column(op.to_column));
          break;
        }
      }
    }
    ops_.clear();
    for (const Located& l : blocks_.columns()->take_unneeded()) EXPECT_EQ(stored_.erase(l.slab), 1u) << "unpinned twice";
  }
  Naive* any(uint64_t* id, bool swapped) {
    std::vector<uint64_t> ids;
    for (const auto& [i, naive] : model_) {
      if (naive.swapped == swapped) ids.push_back(i);
    }
    if (ids.empty()) return nullptr;
    *id = ids[pick(static_cast<uint32_t>(ids.size()))];
    return &model_[*id];
  }

  void create() {
    if (model_.size() >= 6) return;
    const uint64_t id = next_id_++;
    Naive naive;
    std::vector<int32_t> prompt;
    const auto document = static_cast<int32_t>(pick(3));
    for (uint32_t i = 0, n = 1 + pick(40); i < n; ++i) prompt.push_back(document);
    blocks_.create_sequence(SequenceId{id}, &hasher_);
    const int64_t hit = blocks_.match_prefix(SequenceId{id}, prompt);
    for (int64_t p = 0; p < hit; ++p) extend(naive, prompt[static_cast<size_t>(p)], true);
    naive.prefilled = hit;
    model_[id] = naive;
  }

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
    const bool fits = n <= blocks_.max_append(seq);
    const Status s = blocks_.append_slots(seq, n, &ops_);
    ASSERT_EQ(s.ok(), fits);
    refusals += !fits;
    carry_out();
    if (!fits) return;
    const auto first = static_cast<int64_t>(naive->tokens.size());
    for (int64_t i = 0; i < n; ++i) {
      extend(*naive, naive->tokens.empty() ? static_cast<int32_t>(pick(3)) : naive->tokens[0], prefill);
      const BlockId block = blocks_.table(seq).block(static_cast<int32_t>((first + i) / kBlockSize));
      column(blocks_.columns()->column_of(block))[(first + i) % kBlockSize] = naive->content.back();
    }
    if (prefill && naive->prefilled == first) naive->prefilled = first + n;
    const bool all = naive->prefilled == static_cast<int64_t>(naive->tokens.size());
    blocks_.publish(seq, naive->tokens, naive->prefilled, all && pick(2) == 0);
  }

  void fork() {
    uint64_t id = 0;
    Naive* naive = any(&id, false);
    if (naive == nullptr || model_.size() >= 6) return;
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

  void swap() {
    uint64_t id = 0;
    const bool out = pick(2) == 0;
    Naive* naive = any(&id, !out);
    if (naive == nullptr) return;
    const Status s = out ? blocks_.swap_out(SequenceId{id}, &ops_) : blocks_.swap_in(SequenceId{id}, &ops_);
    if (s.ok()) naive->swapped = out;
    carry_out();
  }

  void free() {
    uint64_t id = 0;
    if (any(&id, pick(4) == 0) == nullptr) return;
    blocks_.free(SequenceId{id});
    model_.erase(id);
  }

  // Some published full block lies in the store now.
  void store_some() {
    uint64_t id = 0;
    Naive* naive = any(&id, false);
    if (naive == nullptr || naive->prefilled < kBlockSize) return;
    const auto logical = static_cast<int32_t>(pick(static_cast<uint32_t>(naive->prefilled / kBlockSize)));
    const BlockId block = blocks_.table(SequenceId{id}).block(logical);
    const BlockKey* key = blocks_.key_of(block);
    if (key == nullptr || !blocks_.columns()->is_private(block)) return;
    const uint32_t slab = next_slab_++;
    const auto from = column(blocks_.columns()->column_of(block));
    stored_[slab].assign(from, from + kBlockSize);
    ASSERT_TRUE(blocks_.set_stored(block, *key, {.slab = slab, .at = 0, .parts = 1, .tokens = kBlockSize}));
  }

  std::mt19937 random_;
  BlockHasher hasher_;
  BlockManager blocks_;
  ResidencyTables tables_;
  const int32_t columns_, reserve_;
  std::vector<uint64_t> memory_, swap_;
  std::map<uint32_t, std::vector<uint64_t>> stored_;
  std::vector<CacheOp> ops_;
  std::map<uint64_t, Naive> model_;
  uint64_t next_id_ = 1;
  uint32_t next_slab_ = 1;
};

TEST(BlockColumnsModel, EverySequenceFindsWhatItWrote) {
  int64_t mobile = 0, refusals = 0, returns = 0, swaps = 0;
  for (uint32_t seed = 1; seed <= 6; ++seed) {
    for (const auto& [blocks, columns, reserve] : {std::array{40, 12, 4}, std::array{30, 8, 0}, std::array{30, 7, 4}}) {
      Machine machine(seed, blocks, columns, reserve);
      for (int i = 0; i < 1500; ++i) {
        machine.step();
        machine.check();
        if (HasFatalFailure()) FAIL() << "seed " << seed << " step " << i << ", " << columns << " columns";
      }
      machine.finish();
      mobile += machine.mobile, refusals += machine.refusals, returns += machine.returns, swaps += machine.swaps;
    }
  }
  EXPECT_GT(mobile, 1000);
  EXPECT_GT(refusals, 0);
  EXPECT_GT(returns, 0);
  EXPECT_GT(swaps, 0);
}

}  // namespace
}  // namespace fovea
