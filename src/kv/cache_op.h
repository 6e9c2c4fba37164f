// Memory moves that the bookkeeping orders and the cache carries out.
//
// One ordered list per step, run from first to last before the step's forward pass: a block that one entry
// vacates may be filled by a later one, so the order is part of the meaning.
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
  };
  Kind kind = Kind::copy;
  BlockId block;
  BlockId to;     // copy only
  SwapSlot slot;  // swap_out and swap_in only

  static CacheOp copy(BlockId from, BlockId to) { return {Kind::copy, from, to, SwapSlot{-1}}; }
  static CacheOp swap_out(BlockId block, SwapSlot slot) { return {Kind::swap_out, block, BlockId{-1}, slot}; }
  static CacheOp swap_in(SwapSlot slot, BlockId block) { return {Kind::swap_in, block, BlockId{-1}, slot}; }
  bool operator==(const CacheOp&) const = default;
};

}  // namespace fovea
