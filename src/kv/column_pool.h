// ColumnPool: which blocks have a column of their own in a pool of K and V that holds fewer than there are blocks. Pure
// bookkeeping.
//
// A block is written in a column that is pinned to it. Once K and V lie in a store too, it may be given up: it becomes mobile, and
// what its column holds is then known to the residency tables alone. Nothing is given up while unused columns are left: a context
// that fits costs nothing. Then the blocks that were stored first go first, and `reserve` columns stay free of pins, so that a row
// always finds room for what it reads.
//
// What the store has lost is computed again: the block is given a column for that, and is private until it is stored anew.
#pragma once

#include "kv/cache_op.h"
#include "store/block_store.h"

#include <fovea/types.h>

#include <cstdint>
#include <deque>
#include <span>
#include <utility>
#include <vector>

namespace fovea {

// Where blocks lie outside the pool, by BlockId.
struct BlockHomes {
  std::vector<Located> located;  // [blocks]
  std::vector<StoreKey> keys;    // [blocks] valid where located
};

// Not in a store, but in host memory below a device's pool, in the place of its number.
inline constexpr Located kInHostMemory{.slab = 0};

class ColumnPool {
 public:
  static constexpr SlotId kMobile{-1};  // no column of its own

  ColumnPool(int32_t blocks, int32_t columns, int32_t reserve);

  // Every list of operations of a step begins with those that are due.
  void begin_step(std::vector<CacheOp>* ops);
  // Columns that take() would give, once so many private blocks were released and so many stored ones made private: -1 where not
  // even those could be.
  int32_t available(int32_t released = 0, int32_t owned = 0) const;
  // Pins a column to a block that has none; one is available.
  SlotId take(BlockId block, std::vector<CacheOp>* ops);
  // The same of a block that is mobile: it is private now, and in this step an operation that follows reads its content back.
  SlotId take_back(BlockId block, std::vector<CacheOp>* ops);
  // A mobile block gets a column in which it will be computed again, at need out of the reserve: no row that chooses runs
  // meanwhile. There is one: num_private() < num_columns().
  SlotId begin_repair(BlockId block, std::vector<CacheOp>* ops);
  // It was not computed, or cannot be kept: it is mobile as before, and its column unused.
  void undo_repair(BlockId block);
  // Private blocks leave fewer columns than the reserve, which rows that choose may need.
  bool is_short() const { return mobile_ > 0 && num_columns() - num_private() < reserve_; }
  // The block is free: its column is unused, its content gone.
  void release(BlockId block);
  // K and V of the block lie in a store. Its pin there is the pool's from now on. `sole`: under a key that is the block's alone.
  void set_stored(BlockId block, const StoreKey& key, const Located& located, bool sole = false);
  // A new block whose K and V lie in a store and nowhere else. Its pin there is the pool's from now on.
  void adopt(BlockId block, const StoreKey& key, const Located& located);
  // What a block with a column will hold is not what was stored.
  void set_private(BlockId block);

  SlotId column_of(BlockId block) const { return column_[static_cast<size_t>(block.value)]; }
  std::span<const SlotId> columns() const { return column_; }     // [blocks]
  std::span<const uint8_t> stored() const { return is_stored_; }  // [blocks]
  bool is_stored(BlockId block) const { return is_stored_[static_cast<size_t>(block.value)] != 0; }
  bool is_sole(BlockId block) const { return is_sole_[static_cast<size_t>(block.value)] != 0; }  // set_stored()
  bool is_private(BlockId block) const { return column_of(block) != kMobile && !is_stored(block); }
  const BlockHomes& homes() const { return homes_; }
  int32_t num_columns() const { return static_cast<int32_t>(block_in_.size()); }
  int32_t num_pinned() const { return pinned_; }
  int32_t num_private() const { return pinned_ - pinned_stored_; }
  int32_t num_mobile() const { return mobile_; }  // blocks
  // Pins in the store that no one needs any more, each given back once.
  std::vector<Located> take_unneeded() { return std::exchange(unneeded_, {}); }
  // Keys of blocks that were the pool's alone, and of which nobody has a use any more.
  std::vector<StoreKey> take_worthless() { return std::exchange(worthless_, {}); }
  // At the end: all pins. Nothing is read back any more.
  std::vector<Located> leave_store();

 private:
  bool give_up_one();
  void forget_stale();
  SlotId pin(BlockId block, int32_t keep, std::vector<CacheOp>* ops);
  void flush(std::vector<CacheOp>* ops);
  void leave_store(BlockId block);

  const int32_t reserve_;
  std::vector<SlotId> column_;      // [blocks]
  std::vector<BlockId> block_in_;   // [columns] that it is pinned to, or -1
  std::vector<SlotId> unused_;      // stack: neither pinned nor owned by a mobile block
  std::deque<BlockId> stored_;      // pinned and stored, first stored first; and some that are not any more
  std::vector<uint8_t> is_stored_;  // [blocks] the store holds what the block does
  std::vector<BlockId> leaving_;    // the store, with the next step: operations of this one may read them back
  BlockHomes homes_;
  std::vector<uint8_t> is_sole_;  // [blocks] of homes_
  std::vector<CacheOp> due_;
  std::vector<Located> unneeded_;
  std::vector<StoreKey> worthless_;
  int32_t pinned_ = 0, pinned_stored_ = 0, mobile_ = 0;
  int32_t hand_ = 0;  // the next column to be taken from mobile blocks
};

}  // namespace fovea
