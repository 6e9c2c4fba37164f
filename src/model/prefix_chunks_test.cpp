#include "model/prefix_chunks_test_util.h"

#include <gtest/gtest.h>

namespace fovea {
namespace {

using Ints = std::vector<int32_t>;

TEST(PrefixChunks, FollowTheExample) {
  Ints table(4 * 64);
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(1000 - i);
  const PrefixChunks plan = plan_prefix_chunks(Ints{256, 512, 768, 1024}, table.data(), 64, 16, 1024);
  EXPECT_EQ(plan.chunk_len, 256);
  EXPECT_EQ(plan.count, 4);
  EXPECT_EQ(plan.lengths, (Ints{256, 256, 256, 256, 0, 256, 256, 256, 0, 0, 256, 256, 0, 0, 0, 256}));
  EXPECT_EQ(plan.starts, (Ints{0, 0, 0, 0, 256, 256, 256, 256, 512, 512, 512, 512, 768, 768, 768, 768}));
  EXPECT_EQ(plan.cu_lengths, (Ints{0, 256, 512, 768, 1024, 0, 0, 256, 512, 768, 0, 0, 0, 256, 512, 0, 0, 0, 0, 256}));
  ASSERT_EQ(plan.slots.size(), 4u);
  for (int32_t c = 0; c < 4; ++c) {
    ASSERT_EQ(static_cast<int32_t>(plan.slots[c].size()), plan.cu_lengths[c * 5 + 4]);
    for (int32_t i = 0; i < 4; ++i) {
      for (int32_t t = 0; t < plan.lengths[c * 4 + i]; ++t) {
        const int32_t token = plan.starts[c * 4 + i] + t;
        ASSERT_EQ(plan.slots[c][plan.cu_lengths[c * 5 + i] + t], table[i * 64 + token / 16] * 16 + token % 16);
      }
    }
  }
}

TEST(PrefixChunks, LastChunksArePartialAndNoPrefixMakesNone) {
  const Ints table = {5, 6, 7, 8};
  const PrefixChunks plan = plan_prefix_chunks(Ints{5, 0}, table.data(), 2, 4, 7);
  EXPECT_EQ(plan.chunk_len, 3);
  EXPECT_EQ(plan.lengths, (Ints{3, 0, 2, 0}));
  EXPECT_EQ(plan.slots, (std::vector<Ints>{{20, 21, 22}, {23, 24}}));
  EXPECT_EQ(plan_prefix_chunks(Ints{0, 0}, table.data(), 2, 4).count, 0);
  EXPECT_EQ(plan_prefix_chunks(Ints{}, table.data(), 2, 4).count, 0);
  EXPECT_EQ(plan_prefix_chunks(Ints{2, 1, 1}, table.data(), 1, 4, 2).chunk_len, 1);  // a batch above the capacity
  EXPECT_EQ(plan_prefix_chunks(Ints{1}, table.data(), 4, 4).chunk_len, 131072);
}

}  // namespace
}  // namespace fovea
