// What lies below the pool, as the scheduler may ask for it: chains of blocks that go on where the pool's end. It looks them up
// and reads nothing; the engine loads.
#pragma once

#include "kv/block_key.h"
#include "store/block_store.h"

#include <cstdint>
#include <span>
#include <vector>

namespace fovea {

// Consecutive blocks of a sequence that lie in a store. Pinned there until whoever found them unpins them.
struct StoredChain {
  std::vector<BlockKey> keys;
  std::vector<Located> located;  // [keys]
  int64_t tokens = 0;            // of them; 0: nothing was found that is worth loading
};

class ChainSource {
 public:
  virtual ~ChainSource() = default;
  // The longest chain that begins `tokens`, the first of which follow the block `parent` (null: they begin the sequence).
  // Without an alignment it may end in a partial block; else it is a multiple of it (itself a multiple of the block size).
  virtual StoredChain find(BlockHasher& hasher, const BlockKey* parent, std::span<const int32_t> tokens, int64_t alignment) = 0;
};

}  // namespace fovea
