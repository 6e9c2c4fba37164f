#include "kv/column_pool.h"

#include "base/check.h"

#include <algorithm>
#include <utility>

namespace fovea {

ColumnPool::ColumnPool(int32_t blocks, int32_t columns, int32_t reserve)
    : reserve_(reserve),
      column_(static_cast<size_t>(blocks), kMobile),
      block_in_(static_cast<size_t>(columns), BlockId{-1}),
      is_stored_(static_cast<size_t>(blocks), 0),
      is_sole_(static_cast<size_t>(blocks), 0) {
  FOVEA_CHECK(columns > reserve);
  homes_.located.resize(static_cast<size_t>(blocks));
  homes_.keys.resize(static_cast<size_t>(blocks));
  for (int32_t c = columns - 1; c >= 0; --c) unused_.push_back(SlotId{c});  // lowest first
}

void ColumnPool::begin_step(std::vector<CacheOp>* ops) {
  for (BlockId block : leaving_) {
    if (!is_stored(block)) leave_store(block);
  }
  leaving_.clear();
  while (mobile_ > 0 && num_columns() - pinned_ < reserve_ && give_up_one()) {  // after a repair
  }
  flush(ops);
}

void ColumnPool::leave_store(BlockId block) {
  Located& located = homes_.located[static_cast<size_t>(block.value)];
  if (!located.found()) return;
  unneeded_.push_back(std::exchange(located, Located()));
  if (std::exchange(is_sole_[static_cast<size_t>(block.value)], 0))
    worthless_.push_back(homes_.keys[static_cast<size_t>(block.value)]);
}

std::vector<Located> ColumnPool::leave_store() {
  for (size_t b = 0; b < column_.size(); ++b) leave_store(BlockId{static_cast<int32_t>(b)});
  return take_unneeded();
}

void ColumnPool::flush(std::vector<CacheOp>* ops) {
  ops->insert(ops->end(), due_.begin(), due_.end());
  due_.clear();
}

int32_t ColumnPool::available(int32_t released, int32_t owned) const {
  const int32_t kept = num_private() - released + owned, least = owned > 0 ? -1 : 0;
  const int32_t unused = static_cast<int32_t>(unused_.size()) + released;
  return std::max({least, num_columns() - kept - reserve_, mobile_ == 0 ? unused : least});
}

bool ColumnPool::give_up_one() {
  for (; !stored_.empty(); stored_.pop_front()) {
    const BlockId block = stored_.front();
    SlotId& column = column_[static_cast<size_t>(block.value)];
    if (column == kMobile || !is_stored(block)) continue;
    due_.push_back(CacheOp::unpin(column));
    block_in_[static_cast<size_t>(column.value)] = BlockId{-1};
    column = kMobile;
    --pinned_, --pinned_stored_, ++mobile_;
    stored_.pop_front();
    return true;
  }
  return false;
}

SlotId ColumnPool::take(BlockId block, std::vector<CacheOp>* ops) {
  FOVEA_CHECK(available() > 0);
  return pin(block, reserve_, ops);
}

// `keep`: columns that stay free of pins.
SlotId ColumnPool::pin(BlockId block, int32_t keep, std::vector<CacheOp>* ops) {
  SlotId& column = column_[static_cast<size_t>(block.value)];
  FOVEA_CHECK(column == kMobile);
  if (mobile_ > 0 || unused_.empty()) {
    while (num_columns() - pinned_ <= keep) FOVEA_CHECK(give_up_one());
  }
  if (!unused_.empty()) {
    column = unused_.back();
    unused_.pop_back();
  } else {
    while (block_in_[static_cast<size_t>(hand_)].value >= 0) hand_ = (hand_ + 1) % num_columns();
    column = SlotId{hand_};
    hand_ = (hand_ + 1) % num_columns();
  }
  block_in_[static_cast<size_t>(column.value)] = block;
  ++pinned_;
  due_.push_back(CacheOp::take(block, column));
  flush(ops);
  return column;
}

SlotId ColumnPool::take_back(BlockId block, std::vector<CacheOp>* ops) {
  FOVEA_CHECK(is_stored(block));
  const SlotId column = take(block, ops);
  is_stored_[static_cast<size_t>(block.value)] = 0;
  leaving_.push_back(block);
  --mobile_;
  return column;
}

// Its place in the store is kept until it has another, or is free.
SlotId ColumnPool::begin_repair(BlockId block, std::vector<CacheOp>* ops) {
  FOVEA_CHECK(is_stored(block));
  const SlotId column = pin(block, 0, ops);
  is_stored_[static_cast<size_t>(block.value)] = 0;
  --mobile_;
  return column;
}

void ColumnPool::undo_repair(BlockId block) {
  FOVEA_CHECK(is_private(block) && homes_.located[static_cast<size_t>(block.value)].found());
  SlotId& column = column_[static_cast<size_t>(block.value)];
  block_in_[static_cast<size_t>(column.value)] = BlockId{-1};
  unused_.push_back(std::exchange(column, kMobile));
  due_.push_back(CacheOp::forget(block));
  is_stored_[static_cast<size_t>(block.value)] = 1;
  --pinned_, ++mobile_;
}

void ColumnPool::release(BlockId block) {
  SlotId& column = column_[static_cast<size_t>(block.value)];
  if (column == kMobile) {
    --mobile_;
  } else {
    block_in_[static_cast<size_t>(column.value)] = BlockId{-1};
    unused_.push_back(column);
    --pinned_;
    pinned_stored_ -= is_stored(block);
    column = kMobile;
  }
  due_.push_back(CacheOp::forget(block));
  is_stored_[static_cast<size_t>(block.value)] = 0;
  if (homes_.located[static_cast<size_t>(block.value)].found()) leaving_.push_back(block);
}

void ColumnPool::set_stored(BlockId block, const StoreKey& key, const Located& located, bool sole) {
  FOVEA_CHECK(is_private(block) && located.found());
  leave_store(block);
  homes_.located[static_cast<size_t>(block.value)] = located;
  homes_.keys[static_cast<size_t>(block.value)] = key;
  is_stored_[static_cast<size_t>(block.value)] = 1;
  is_sole_[static_cast<size_t>(block.value)] = sole;
  ++pinned_stored_;
  stored_.push_back(block);
  if (stored_.size() > 2 * block_in_.size()) forget_stale();
}

// Of a block that was stored twice the last time counts.
void ColumnPool::forget_stale() {
  std::vector<uint8_t> kept(column_.size(), 0);
  std::deque<BlockId> now;
  for (auto block = stored_.rbegin(); block != stored_.rend(); ++block) {
    uint8_t& is_kept = kept[static_cast<size_t>(block->value)];
    if (!is_kept && column_of(*block) != kMobile && is_stored(*block)) is_kept = 1, now.push_front(*block);
  }
  stored_.swap(now);
}

void ColumnPool::adopt(BlockId block, const StoreKey& key, const Located& located) {
  FOVEA_CHECK(column_of(block) == kMobile && !is_stored(block) && located.found());
  leave_store(block);
  homes_.located[static_cast<size_t>(block.value)] = located;
  homes_.keys[static_cast<size_t>(block.value)] = key;
  is_stored_[static_cast<size_t>(block.value)] = 1;
  ++mobile_;
}

void ColumnPool::set_private(BlockId block) {
  if (!is_stored(block)) return;
  FOVEA_CHECK(column_of(block) != kMobile);
  is_stored_[static_cast<size_t>(block.value)] = 0;
  --pinned_stored_;
  leave_store(block);
}

}  // namespace fovea
