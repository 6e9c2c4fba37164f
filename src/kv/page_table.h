// PageTable: where the blocks of one sequence lie, in logical order.
#pragma once

#include "kv/block_place.h"

#include <fovea/types.h>

#include <cstdint>
#include <span>
#include <vector>

namespace fovea {

class PageTable {
 public:
  void reserve(int64_t blocks) { places_.reserve(static_cast<size_t>(blocks)); }
  int32_t size() const { return static_cast<int32_t>(places_.size()); }
  bool empty() const { return places_.empty(); }

  const BlockPlace& place(int32_t logical) const { return places_[static_cast<size_t>(logical)]; }
  std::span<const BlockPlace> places() const { return places_; }
  // Of a block that lies in the pool.
  BlockId block(int32_t logical) const { return place(logical).block(); }
  BlockId back() const { return places_.back().block(); }

  void push_back(BlockId block) { places_.push_back(BlockPlace::in_pool(block)); }
  void set(int32_t logical, BlockPlace place) { places_[static_cast<size_t>(logical)] = place; }
  void truncate(int32_t blocks) { places_.erase(places_.begin() + blocks, places_.end()); }

 private:
  std::vector<BlockPlace> places_;
};

}  // namespace fovea
