// PageTable: the blocks of one sequence in logical order, as the int32 row that kernels read.
#pragma once

#include "base/check.h"

#include <fovea/types.h>

#include <cstdint>
#include <span>
#include <vector>

namespace fovea {

class PageTable {
 public:
  void reserve(int64_t blocks) { row_.reserve(static_cast<size_t>(blocks)); }
  int32_t size() const { return static_cast<int32_t>(row_.size()); }
  bool empty() const { return row_.empty(); }

  BlockId block(int32_t logical) const { return BlockId{row_[static_cast<size_t>(logical)]}; }
  BlockId back() const { return BlockId{row_.back()}; }
  void push_back(BlockId block) { row_.push_back(block.value); }
  void set(int32_t logical, BlockId block) { row_[static_cast<size_t>(logical)] = block.value; }
  void truncate(int32_t blocks) { row_.resize(static_cast<size_t>(blocks)); }
  void clear() { row_.clear(); }

  // [size()] block ids, ready for PageTableView::slots. Of a sequence that is swapped out: a value below 0 is
  // a column in the swap area, ~value its SwapSlot.
  std::span<const int32_t> row() const { return row_; }

  // A row copied to `out`, at most `capacity` entries (a batch's table is [seqs, capacity]).
  void copy_to(int32_t* out, int64_t capacity) const {
    FOVEA_CHECK(static_cast<int64_t>(row_.size()) <= capacity);
    for (size_t i = 0; i < row_.size(); ++i) out[i] = row_[i];
  }

 private:
  std::vector<int32_t> row_;
};

}  // namespace fovea
