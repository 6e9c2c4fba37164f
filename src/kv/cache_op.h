// Memory moves that the bookkeeping orders and the cache carries out.
//
// One ordered list per step, run from first to last before the step's forward pass: a block that one entry
// vacates may be filled by a later one, so the order is part of the meaning.
//
// A block has a number in the planes that are resident and a column in those that are pooled. Where the pool holds every block
// they are the same, and take, unpin and forget do not occur.
#pragma once

#include "kv/block_place.h"

#include <fovea/types.h>

#include <cstdint>

namespace fovea {

struct CacheOp {
  enum class Kind : uint8_t {
    copy,      // block -> to: copy on write
    swap_out,  // block -> slot
    swap_in,   // slot -> block
    take,      // the column is pinned to the block: what was in it is evicted
    unpin,     // what is in the column may be evicted
    forget,    // the block is free: whatever columns hold of it are unused
  };

  Kind kind = Kind::copy;
  BlockId block;
  BlockId to;            // copy only
  SwapSlot slot;         // swap_out and swap_in only
  SlotId column{-1};     // of block; copy: -1 where it has none, and K and V are read from a store
  SlotId to_column{-1};  // of to

  static CacheOp copy(BlockId from, BlockId to) { return copy(from, SlotId{from.value}, to, SlotId{to.value}); }
  static CacheOp copy(BlockId from, SlotId column, BlockId to, SlotId to_column) {
    return {Kind::copy, from, to, SwapSlot{-1}, column, to_column};
  }
  static CacheOp swap_out(BlockId block, SwapSlot slot) { return swap_out(block, SlotId{block.value}, slot); }
  static CacheOp swap_out(BlockId block, SlotId column, SwapSlot slot) {
    return {Kind::swap_out, block, BlockId{-1}, slot, column};
  }
  static CacheOp swap_in(SwapSlot slot, BlockId block) { return swap_in(slot, block, SlotId{block.value}); }
  static CacheOp swap_in(SwapSlot slot, BlockId block, SlotId column) { return {Kind::swap_in, block, BlockId{-1}, slot, column}; }
  static CacheOp take(BlockId block, SlotId column) { return {Kind::take, block, BlockId{-1}, SwapSlot{-1}, column}; }
  static CacheOp unpin(SlotId column) { return {Kind::unpin, BlockId{-1}, BlockId{-1}, SwapSlot{-1}, column}; }
  static CacheOp forget(BlockId block) { return {Kind::forget, block, BlockId{-1}, SwapSlot{-1}}; }
  bool operator==(const CacheOp&) const = default;
};

}  // namespace fovea
