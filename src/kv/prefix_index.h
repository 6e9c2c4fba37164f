// PrefixIndex: key of a block's content -> the block in the pool that holds it. At most one block per key
// (the first wins).
//
// An open-addressed table sized for the whole pool when it is made: nothing allocates afterwards.
#pragma once

#include "kv/block_key.h"

#include <fovea/types.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace fovea {

class PrefixIndex {
 public:
  explicit PrefixIndex(int32_t num_blocks);

  std::optional<BlockId> find(const BlockKey& key) const;
  // Records the block's key. Publishes it unless an equal block is published already; returns whether it did.
  bool insert(const BlockKey& key, BlockId block);
  // Forgets the block's key (its content is about to change); no-op where it has none.
  void erase(BlockId block);

  bool is_published(BlockId block) const { return state_[block.value] == State::published; }
  const BlockKey* key_of(BlockId block) const;  // null: no key recorded
  int32_t size() const { return size_; }        // published blocks

 private:
  enum class State : uint8_t { none, known, published };

  size_t home(const BlockKey& key) const { return std::hash<BlockKey>{}(key)&mask_; }

  std::vector<int32_t> table_;  // block or -1; a power of two >= 2 * num_blocks, linear probing
  std::vector<BlockKey> keys_;  // [num_blocks]
  std::vector<State> state_;    // [num_blocks]
  size_t mask_ = 0;
  int32_t size_ = 0;
};

}  // namespace fovea
