// Random operations on a BlockManager whose pool has fewer columns than there are blocks, carried out on a small memory, on
// residency tables and on a store, and compared with the naive model.
#include "kv/naive_sequences_test_util.h"
#include "kv/residency_tables.h"

#include <array>
#include <set>

namespace fovea::testing {
namespace {

class Machine : public NaiveSequences {
 public:
  Machine(uint32_t seed, int32_t blocks, int32_t columns, int32_t reserve)
      : NaiveSequences(
            seed,
            {.num_blocks = blocks, .block_size = kBlockSize, .swap_slots = 8, .num_columns = columns, .reserve_columns = reserve}, 6),
        tables_(1, 1, blocks, columns),
        columns_(columns),
        reserve_(reserve),
        memory_(static_cast<size_t>(columns) * kBlockSize),
        swap_(8 * kBlockSize) {}

  void step() {
    switch (pick(10)) {
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
      case 7:
        return repair();
      case 8:
        return spill();
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
    if (pool.num_mobile() > 0 && !pool.is_short()) ASSERT_GE(tables_.num_mobile(), reserve_);
    shorts += pool.is_short();
    mobile += pool.num_mobile();
    for (const auto& [id, naive] : model_) {
      for (size_t p = 0; p < naive.content.size() && !naive.swapped; ++p) {
        const BlockId block = blocks_.table(SequenceId{id}).block(static_cast<int32_t>(p / kBlockSize));
        ASSERT_EQ(content_of(block)[p % kBlockSize], naive.content[p]) << "sequence " << id << " at " << p;
      }
    }
  }

  void finish() {
    free_all();
    check();
    EXPECT_EQ(blocks_.num_free(), blocks_.num_blocks());
    EXPECT_TRUE(sole_.empty()) << "what nobody else finds is left in the store";
    EXPECT_EQ(blocks_.free_columns(), columns_ - (blocks_.columns()->num_mobile() > 0 ? reserve_ : 0));
  }

  int64_t mobile = 0, returns = 0, swaps = 0, repairs = 0, shorts = 0, spills = 0;

 private:
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
    for (const StoreKey& key : blocks_.columns()->take_worthless()) EXPECT_EQ(sole_.erase(key), 1u) << "not the block's alone";
  }

  Status grow(SequenceId seq, int64_t n) override {
    const bool fits = n <= blocks_.max_append(seq);
    const Status s = blocks_.append_slots(seq, n, &ops_);
    EXPECT_EQ(s.ok(), fits);
    carry_out();
    return s;
  }
  uint64_t& slot(SequenceId seq, int64_t position) override {
    const BlockId block = blocks_.table(seq).block(static_cast<int32_t>(position / kBlockSize));
    return column(blocks_.columns()->column_of(block))[position % kBlockSize];
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

  // The store has lost a mobile block: it is computed again in a column, or not.
  void repair() {
    uint64_t id = 0;
    if (any(&id, false) == nullptr || blocks_.table(SequenceId{id}).empty()) return;
    const PageTable& table = blocks_.table(SequenceId{id});
    const BlockId block = table.block(static_cast<int32_t>(pick(static_cast<uint32_t>(table.size()))));
    ColumnPool& pool = *blocks_.columns();
    if (pool.column_of(block) != ColumnPool::kMobile || !blocks_.begin_repair(block, &ops_)) return;
    carry_out();
    ASSERT_NE(pool.column_of(block), ColumnPool::kMobile);
    ++repairs;
    if (pick(3) == 0) return pool.undo_repair(block);
    const auto& content = stored_.at(pool.homes().located[static_cast<size_t>(block.value)].slab);
    std::copy(content.begin(), content.end(), column(pool.column_of(block)));
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

  // What has no name goes to the store under names of its own; one in five is refused.
  void spill() {
    std::vector<PublishedRun> runs;
    blocks_.note_published(&runs);
    blocks_.spill();
    blocks_.note_published(nullptr);
    for (const PublishedRun& run : runs) {
      for (BlockId block : run.blocks) blocks_.pin(block);
    }
    for (const PublishedRun& run : runs) {
      for (size_t i = 0; i < run.keys.size(); ++i) {
        const BlockId block = run.blocks[i];
        if (pick(5) > 0) {
          const bool sole =
              blocks_.key_of(block) == nullptr && !blocks_.columns()->homes().located[static_cast<size_t>(block.value)].found();
          const uint32_t slab = next_slab_++;
          const auto from = column(blocks_.columns()->column_of(block));
          stored_[slab].assign(from, from + kBlockSize);
          ASSERT_TRUE(blocks_.set_stored(block, run.keys[i], {.slab = slab, .at = 0, .parts = 1, .tokens = kBlockSize}));
          if (sole) {
            EXPECT_TRUE(sole_.insert(run.keys[i]).second) << "another block has this key";
          }
          ++spills;
        }
        blocks_.unpin(block);
      }
    }
  }

  ResidencyTables tables_;
  const int32_t columns_, reserve_;
  std::vector<uint64_t> memory_, swap_;
  std::map<uint32_t, std::vector<uint64_t>> stored_;
  std::set<StoreKey> sole_;
  uint32_t next_slab_ = 1;
};

TEST(BlockColumnsModel, EverySequenceFindsWhatItWrote) {
  int64_t mobile = 0, refusals = 0, returns = 0, swaps = 0, repairs = 0, shorts = 0, spills = 0;
  for (uint32_t seed = 1; seed <= 6; ++seed) {
    for (const auto& [blocks, columns, reserve] : {std::array{40, 12, 4}, std::array{30, 8, 0}, std::array{30, 7, 4}}) {
      Machine machine(seed, blocks, columns, reserve);
      for (int i = 0; i < 1500; ++i) {
        machine.step();
        machine.check();
        if (HasFailure()) FAIL() << "seed " << seed << " step " << i << ", " << columns << " columns";
      }
      machine.finish();
      mobile += machine.mobile, refusals += machine.refusals, returns += machine.returns, swaps += machine.swaps;
      repairs += machine.repairs, shorts += machine.shorts;
      spills += machine.spills;
    }
  }
  EXPECT_GT(mobile, 1000);
  EXPECT_GT(refusals, 0);
  EXPECT_GT(returns, 0);
  EXPECT_GT(swaps, 0);
  EXPECT_GT(repairs, 100);
  EXPECT_GT(shorts, 0);
  EXPECT_GT(spills, 100);
}

}  // namespace
}  // namespace fovea::testing
