#include "kv/block_pool.h"

#include "base/check.h"

namespace fovea {

BlockPool::BlockPool(int32_t num_blocks)
    : refs_(static_cast<size_t>(num_blocks), 0),
      cached_(static_cast<size_t>(num_blocks), 0),
      next_(static_cast<size_t>(num_blocks) + 1),
      prev_(static_cast<size_t>(num_blocks) + 1) {
  FOVEA_CHECK(num_blocks > 0);
  freed_.reserve(static_cast<size_t>(num_blocks));
  next_[num_blocks] = prev_[num_blocks] = num_blocks;
}

int32_t BlockPool::num_allocatable() const { return static_cast<int32_t>(freed_.size()) + (num_blocks() - fresh_) + cached_count_; }

std::optional<BlockPool::Allocation> BlockPool::allocate() {
  Allocation a{BlockId{-1}, false};
  if (!freed_.empty()) {
    a.block = BlockId{freed_.back()};
    freed_.pop_back();
  } else if (fresh_ < num_blocks()) {
    a.block = BlockId{fresh_++};
  } else if (cached_count_ > 0) {
    a = {BlockId{next_[num_blocks()]}, true};
    unlink(a.block.value);
  } else {
    return std::nullopt;
  }
  FOVEA_CHECK(refs_[a.block.value] == 0);
  refs_[a.block.value] = 1;
  return a;
}

void BlockPool::ref(BlockId block) {
  if (is_cached(block)) {
    unlink(block.value);
  } else {
    FOVEA_CHECK(refs_[block.value] > 0);
  }
  ++refs_[block.value];
}

bool BlockPool::unref(BlockId block, bool keep) {
  FOVEA_CHECK(refs_[block.value] > 0);
  if (--refs_[block.value] > 0) return false;
  if (!keep) {
    freed_.push_back(block.value);
    return true;
  }
  const int32_t sentinel = num_blocks();  // its predecessor is the most recently used
  const int32_t last = prev_[sentinel];
  next_[last] = block.value;
  prev_[block.value] = last;
  next_[block.value] = sentinel;
  prev_[sentinel] = block.value;
  cached_[block.value] = 1;
  ++cached_count_;
  return true;
}

void BlockPool::unlink(int32_t block) {
  FOVEA_CHECK(cached_[block] != 0);
  next_[prev_[block]] = next_[block];
  prev_[next_[block]] = prev_[block];
  cached_[block] = 0;
  --cached_count_;
}

}  // namespace fovea
