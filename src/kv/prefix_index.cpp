#include "kv/prefix_index.h"

#include "base/check.h"

#include <bit>

namespace fovea {

PrefixIndex::PrefixIndex(int32_t num_blocks)
    : table_(std::bit_ceil(2 * static_cast<size_t>(num_blocks)), -1),
      keys_(static_cast<size_t>(num_blocks)),
      state_(static_cast<size_t>(num_blocks), State::none),
      mask_(table_.size() - 1) {}

std::optional<BlockId> PrefixIndex::find(const BlockKey& key) const {
  for (size_t at = home(key); table_[at] >= 0; at = (at + 1) & mask_) {
    if (keys_[table_[at]] == key) return BlockId{table_[at]};
  }
  return std::nullopt;
}

bool PrefixIndex::insert(const BlockKey& key, BlockId block) {
  FOVEA_CHECK(state_[block.value] == State::none);
  keys_[block.value] = key;
  size_t at = home(key);
  for (; table_[at] >= 0; at = (at + 1) & mask_) {
    if (keys_[table_[at]] == key) {
      state_[block.value] = State::known;
      return false;
    }
  }
  table_[at] = block.value;
  state_[block.value] = State::published;
  ++size_;
  return true;
}

void PrefixIndex::erase(BlockId block) {
  const bool published = state_[block.value] == State::published;
  state_[block.value] = State::none;
  if (!published) return;
  --size_;
  size_t hole = home(keys_[block.value]);
  while (table_[hole] != block.value) hole = (hole + 1) & mask_;
  // Shift back what a probe would no longer reach across the hole; no tombstones, so lookups never slow down.
  for (size_t at = (hole + 1) & mask_; table_[at] >= 0; at = (at + 1) & mask_) {
    const size_t from_home = (at - home(keys_[table_[at]])) & mask_;
    if (from_home >= ((at - hole) & mask_)) {
      table_[hole] = table_[at];
      hole = at;
    }
  }
  table_[hole] = -1;
}

const BlockKey* PrefixIndex::key_of(BlockId block) const {
  return state_[block.value] == State::none ? nullptr : &keys_[block.value];
}

}  // namespace fovea
