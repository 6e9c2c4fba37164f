// Where the pool has fewer columns than there are blocks: who has one, and what is stored so that it may lose it.
#include "kv/block_manager.h"

#include "base/check.h"

namespace fovea {
namespace {

constexpr uint8_t kRefusalsMax = 2;  // of a store, before a block keeps its column for good

}  // namespace

// The least recently used cached block that no store has gives up its column, and with it its content.
bool BlockManager::drop_one_private() {
  const auto block = pool_.evict_first([this](BlockId b) { return columns_->is_private(b); });
  if (!block) return false;
  index_.erase(*block);
  --cached_private_;
  columns_->release(*block);
  return true;
}

// ---- columns ----

int64_t BlockManager::free_columns() const { return columns_ ? columns_->available(cached_private_) : num_free(); }

void BlockManager::begin_step(std::vector<CacheOp>* ops) {
  if (columns_) columns_->begin_step(ops);
}

void BlockManager::append_stored(SequenceId seq, std::span<const BlockKey> keys, std::span<const Located> located) {
  Blocks& s = find(seq);
  FOVEA_CHECK(!s.swapped && !ends_partial(s));
  for (size_t i = 0; i < keys.size(); ++i) {
    const BlockId block = allocate_number();
    columns_->adopt(block, keys[i], config_.host_below ? kInHostMemory : located[i]);
    s.table.push_back(block);
    s.num_tokens += config_.block_size;
  }
}

bool BlockManager::set_stored(BlockId block, const BlockKey& key, const Located& located) {
  const BlockKey* now = index_.key_of(block);
  if ((now != nullptr && *now != key) || !columns_->is_private(block)) return false;
  if (pool_.is_cached(block)) --cached_private_;
  const auto spilled = spilled_.extract(block.value);
  columns_->set_stored(block, key, located, spilled && spilled.mapped().sole);
  return true;
}

bool BlockManager::begin_repair(BlockId block, std::vector<CacheOp>* ops) {
  while (columns_->available() == 0 && drop_one_private()) {
  }
  if (columns_->num_private() == columns_->num_columns()) return false;
  columns_->begin_repair(block, ops);
  return true;
}

// The block is about to be written on: it needs a column with its content, and what the store has is not it any more.
void BlockManager::own_again(BlockId block, std::vector<CacheOp>* ops) {
  refusals_[static_cast<size_t>(block.value)] = 0;
  if (columns_->column_of(block) != ColumnPool::kMobile) return columns_->set_private(block);
  while (columns_->available() == 0) FOVEA_CHECK(drop_one_private());
  const SlotId column = columns_->take_back(block, ops);
  ops->push_back(CacheOp::copy(block, ColumnPool::kMobile, block, column));
}

// ---- what has no name, and goes to the store all the same ----

bool BlockManager::spill() {
  if (!columns_ || noted_ == nullptr) return false;
  bool any = false;
  sequences_.for_each([&](const Blocks& s) {
    if (s.swapped) return;
    const auto end = static_cast<int32_t>(s.num_tokens / config_.block_size);
    int32_t first = end;  // what answers wrote stands last
    while (first > 0 && !columns_->is_stored(s.table.block(first - 1))) --first;
    for (int32_t i = first; i < end; ++i) any |= spill_one(s, i);
  });
  return any;
}

bool BlockManager::spill_one(const Blocks& s, int32_t index) {
  const BlockId block = s.table.block(index);
  const auto b = static_cast<size_t>(block.value);
  if (!columns_->is_private(block) || pins_[b] > 0 || refusals_[b] == kRefusalsMax) return false;
  const BlockKey* name = index_.key_of(block);
  const BlockHomes& homes = columns_->homes();
  if (name == nullptr && homes.located[b].found()) name = &homes.keys[b];  // it was computed again
  const auto [spilled, fresh] = spilled_.try_emplace(block.value, Spilled{name ? *name : config_.private_key, name == nullptr});
  if (!fresh) return false;  // another sequence that has it was asked before
  BlockKey& key = spilled->second.key;
  if (name == nullptr) {
    ++spills_;
    for (size_t i = 0; i < sizeof(spills_); ++i) key.bytes[i] ^= static_cast<uint8_t>(spills_ >> 8 * i);
  }
  const BlockKey parent = index > 0 ? stored_name(s.table.block(index - 1)) : BlockKey{};
  note(index > 0 ? &parent : nullptr, index, key, block, config_.block_size);
  return true;
}

// What the block lies under in a store, or will.
BlockKey BlockManager::stored_name(BlockId block) const {
  if (columns_->is_stored(block)) return columns_->homes().keys[static_cast<size_t>(block.value)];
  if (const BlockKey* name = index_.key_of(block)) return *name;
  const auto spilled = spilled_.find(block.value);
  return spilled != spilled_.end() ? spilled->second.key : config_.private_key;
}

void BlockManager::not_stored(BlockId block) {
  const auto b = static_cast<size_t>(block.value);
  spilled_.erase(block.value);
  if (pins_[b] == 0 && refusals_[b] < kRefusalsMax) ++refusals_[b];
}

}  // namespace fovea
