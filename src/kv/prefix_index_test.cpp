#include "kv/prefix_index.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace fovea {
namespace {

// Few distinct hashes (the first 8 bytes), so that probes run into each other and around the end of the
// table.
BlockKey make_key(uint32_t id, uint8_t home) {
  BlockKey key;
  key.bytes[0] = home;
  std::memcpy(key.bytes.data() + 8, &id, 4);
  return key;
}

TEST(PrefixIndex, TheFirstOfEqualBlocksWins) {
  PrefixIndex index(4);
  const BlockKey key = make_key(1, 3);
  EXPECT_FALSE(index.find(key).has_value());
  EXPECT_TRUE(index.insert(key, BlockId{2}));
  EXPECT_FALSE(index.insert(key, BlockId{0}));
  EXPECT_EQ(index.find(key), BlockId{2});
  EXPECT_FALSE(index.is_published(BlockId{0}));
  EXPECT_EQ(*index.key_of(BlockId{0}), key);
  index.erase(BlockId{0});  // forgetting the other one leaves the first
  EXPECT_EQ(index.find(key), BlockId{2});
  index.erase(BlockId{2});
  EXPECT_FALSE(index.find(key).has_value());
  EXPECT_EQ(index.key_of(BlockId{2}), nullptr);
  index.erase(BlockId{2});
  EXPECT_EQ(index.size(), 0);
}

TEST(PrefixIndex, AgreesWithAMapUnderCollisions) {
  constexpr int32_t kBlocks = 32;
  PrefixIndex index(kBlocks);
  std::map<BlockKey, int32_t> published;
  std::vector<std::optional<BlockKey>> known(kBlocks);
  std::mt19937 random(11);
  for (int step = 0; step < 20000; ++step) {
    const auto block = static_cast<int32_t>(random() % kBlocks);
    if (known[block].has_value()) {
      const auto it = published.find(*known[block]);
      if (it != published.end() && it->second == block) published.erase(it);
      known[block].reset();
      index.erase(BlockId{block});
    } else {
      const uint32_t id = random() % 48;
      const BlockKey key = make_key(id, static_cast<uint8_t>(id % 3 == 0 ? 63 : id % 7));
      known[block] = key;
      EXPECT_EQ(index.insert(key, BlockId{block}), published.emplace(key, block).second);
    }
    for (uint32_t id = 0; id < 48; ++id) {
      const BlockKey key = make_key(id, static_cast<uint8_t>(id % 3 == 0 ? 63 : id % 7));
      const auto it = published.find(key);
      const auto found = index.find(key);
      ASSERT_EQ(found.has_value(), it != published.end()) << "step " << step;
      if (found.has_value()) {
        ASSERT_EQ(found->value, it->second);
      }
    }
    ASSERT_EQ(index.size(), static_cast<int32_t>(published.size()));
  }
}

}  // namespace
}  // namespace fovea
