// Which column of the pool holds which block, for each (layer, KV head) separately: fovea/kernels/residency.h has the words and the
// rule of eviction. Pure bookkeeping in host memory, one writer.
#pragma once

#include <fovea/kernels/residency.h>
#include <fovea/status.h>
#include <fovea/types.h>

#include <cstdint>
#include <vector>

namespace fovea {

// What a step brings in counts as read so many steps earlier, until it is read again; what is no longer pinned, too. Most of what
// is read once does not come again soon, and plain recency would keep it instead of what is read now and then.
inline constexpr int32_t kFreshSteps = 64;
// What is read ahead outlives what comes in during so many steps.
inline constexpr int32_t kAheadSteps = 2;

class ResidencyTables {
 public:
  // Of one (layer, head).
  static constexpr int64_t kBytesPerBlock = sizeof(int32_t);
  static constexpr int64_t kBytesPerColumn = sizeof(int32_t) + sizeof(uint32_t);

  ResidencyTables(int32_t layers, int32_t heads, int32_t blocks, int32_t columns);

  // The column is the block's in every (layer, head), and stays: whoever owned it there has none any more.
  void pin(int32_t column, BlockId block);
  // Its owners stay, as if they had been brought in by the last wave.
  void unpin(int32_t column);
  // The BlockId has no content any more: whatever it owns is unused, and the first to be evicted.
  void forget(BlockId block);
  // Gives a block that has no column here the one of the oldest stamp, ties to the lower column, as if it came in kAheadSteps from
  // now; but none that the last wave did read. -1: there is none, or the block has one.
  int32_t adopt(LayerIdx layer, int32_t head, BlockId block);
  // Columns from `first` on are nobody's until they are given back: what they hold is evicted. None of them is pinned.
  void withhold(int32_t first);
  void give_back(int32_t first);
  // What was to be read into the block's column is not there.
  void lose(LayerIdx layer, int32_t head, BlockId block);

  // ResolveParams::fresh_age, with a wave for each layer of a step.
  uint32_t fresh_age() const { return static_cast<uint32_t>(kFreshSteps * layers_); }
  // The number of the next wave. Where it would reach 2^31 all stamps are lowered first; what is older than that is equally old.
  uint32_t next_wave();
  ResidencyView layer(LayerIdx layer);
  int32_t slot_of(LayerIdx layer, int32_t head, BlockId block) const { return slot_of_[row(layer, head, blocks_) + block.value]; }
  int32_t num_blocks() const { return blocks_; }
  int32_t num_columns() const { return columns_; }
  const int32_t* slots() const { return slot_of_.data(); }  // [layers, heads, blocks]
  BlockId owner_of(LayerIdx layer, int32_t head, int32_t column) const {
    return BlockId{owner_[row(layer, head, columns_) + column]};
  }
  uint32_t stamp_of(LayerIdx layer, int32_t head, int32_t column) const { return stamp_[row(layer, head, columns_) + column]; }
  int32_t num_mobile() const { return columns_ - pinned_; }  // columns that are neither pinned nor withheld
  int64_t bytes() const;

  // For tests: slots and owners agree both ways, pins are the same everywhere. Else internal with what is wrong.
  Status check_consistency() const;
  void set_wave(uint32_t wave) { wave_ = wave; }  // for tests

 private:
  size_t row(LayerIdx layer, int32_t head, int32_t width) const {
    return (static_cast<size_t>(layer.value) * heads_ + static_cast<size_t>(head)) * static_cast<size_t>(width);
  }

  const int32_t layers_, heads_, blocks_, columns_;
  int32_t pinned_ = 0;            // those that are withheld included: pinned, without an owner
  uint32_t wave_ = fresh_age();   // the last one: what came in with the first one has an age, too
  std::vector<int32_t> slot_of_;  // [layers, heads, blocks]
  std::vector<int32_t> owner_;    // [layers, heads, columns]
  std::vector<uint32_t> stamp_;   // [layers, heads, columns]
};

}  // namespace fovea
