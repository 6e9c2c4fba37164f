// BlockPlace: where one block of a sequence lies.
#pragma once

#include "base/check.h"

#include <fovea/types.h>

#include <cstdint>

namespace fovea {

using SwapSlot = StrongId<struct SwapSlotTag>;  // room for one column in the swap area

class BlockPlace {
 public:
  // Places to come (a store, a load on its way) are further values: whoever asks for a block or a slot names the place first.
  enum class Where : uint8_t { pool, swap };

  static BlockPlace in_pool(BlockId block) { return {Where::pool, block.value}; }
  static BlockPlace in_swap(SwapSlot slot) { return {Where::swap, slot.value}; }

  Where where() const { return where_; }
  bool is_in_pool() const { return where_ == Where::pool; }
  BlockId block() const {
    FOVEA_CHECK(where_ == Where::pool);
    return BlockId{index_};
  }
  SwapSlot slot() const {
    FOVEA_CHECK(where_ == Where::swap);
    return SwapSlot{index_};
  }
  bool operator==(const BlockPlace&) const = default;

 private:
  BlockPlace(Where where, int32_t index) : where_(where), index_(index) {}

  Where where_;
  int32_t index_;
};

}  // namespace fovea
