// BlockPool: which blocks are free, which are referenced, and which are kept for their content. No tensor
// memory.
//
// A block is in one of three states:
//   free    content worthless
//   used    referenced by one or more page tables
//   cached  referenced by none, content valid and findable by its key: least recently used first out
// Allocation takes a freed block, else the lowest block never used (so memory grows as it is needed), else
// the least recently used cached one. Every operation is O(1) and allocates nothing.
#pragma once

#include <fovea/types.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace fovea {

class BlockPool {
 public:
  explicit BlockPool(int32_t num_blocks);

  struct Allocation {
    BlockId block;  // referenced once
    bool evicted;   // it was cached: its key must be forgotten
  };
  std::optional<Allocation> allocate();  // nullopt: every block is used

  // The least recently used cached block that `wanted` accepts becomes free: its key must be forgotten. O(cached).
  template <typename Wanted>
  std::optional<BlockId> evict_first(Wanted&& wanted) {
    for (int32_t b = next_[num_blocks()]; b != num_blocks(); b = next_[b]) {
      if (!wanted(BlockId{b})) continue;
      unlink(b);
      freed_.push_back(b);
      return BlockId{b};
    }
    return std::nullopt;
  }

  void ref(BlockId block);  // used or cached -> used, one more reference
  // One reference fewer; at none the block is cached (`keep`) or free. Returns true when it was the last.
  bool unref(BlockId block, bool keep);

  int32_t num_blocks() const { return static_cast<int32_t>(refs_.size()); }
  int32_t num_used() const { return num_blocks() - num_allocatable(); }
  int32_t num_cached() const { return cached_count_; }
  int32_t num_allocatable() const;               // free + cached
  int32_t high_water() const { return fresh_; }  // blocks ever used: what memory has been touched

  int32_t ref_count(BlockId block) const { return refs_[block.value]; }
  bool is_cached(BlockId block) const { return cached_[block.value] != 0; }

 private:
  void unlink(int32_t block);

  std::vector<int32_t> refs_;
  std::vector<uint8_t> cached_;
  std::vector<int32_t> freed_;  // stack of freed blocks
  std::vector<int32_t> next_;   // cached list, circular through the sentinel [num_blocks]
  std::vector<int32_t> prev_;
  int32_t fresh_ = 0;  // blocks [fresh_, n) were never used
  int32_t cached_count_ = 0;
};

}  // namespace fovea
