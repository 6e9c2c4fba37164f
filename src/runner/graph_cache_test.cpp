#include "runner/graph_cache.h"

#include <gtest/gtest.h>

namespace fovea {
namespace {

GraphKey key_of(int32_t rows, uint64_t method_key = 0) {
  GraphKey key;
  key.add_group(nullptr, rows, method_key);
  return key;
}

TEST(GraphCache, AShapeIsSeenBeforeItIsCaptured) {
  GraphCache cache(4);
  EXPECT_EQ(cache.find(key_of(1)), nullptr);
  ASSERT_NE(cache.find(key_of(1)), nullptr);
  EXPECT_EQ(*cache.find(key_of(1)), nullptr);
  EXPECT_EQ(cache.find(key_of(2)), nullptr);
  EXPECT_EQ(cache.find(key_of(1, 7)), nullptr) << "another key of the method is another graph";
  GraphKey two = key_of(1);
  two.add_group(nullptr, 1, 0);
  EXPECT_EQ(cache.find(two), nullptr);
  EXPECT_EQ(cache.size(), 4u);
}

TEST(GraphCache, TheLeastRecentlyUsedMakesRoom) {
  GraphCache cache(3);
  for (int32_t rows : {1, 2, 3}) cache.find(key_of(rows));
  EXPECT_NE(cache.find(key_of(1)), nullptr);
  EXPECT_EQ(cache.find(key_of(4)), nullptr);
  EXPECT_EQ(cache.size(), 3u);
  EXPECT_NE(cache.find(key_of(1)), nullptr);
  EXPECT_NE(cache.find(key_of(3)), nullptr);
  EXPECT_EQ(cache.find(key_of(2)), nullptr) << "it was used longest ago";
}

}  // namespace
}  // namespace fovea
