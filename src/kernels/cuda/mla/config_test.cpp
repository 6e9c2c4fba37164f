#include "kernels/cuda/mla/config.h"

#include <gtest/gtest.h>

namespace fovea::cuda::mla {
namespace {

TEST(MlaSplitRule, CoversEveryKeyWithinTheMostSplits) {
  const SplitRule rule = kWgmmaSplits;
  for (int64_t keys : {0, 1, 511, 512, 513, 2048, 16384, 16385, 131072, 1000001}) {
    const int64_t splits = rule.splits(keys), each = rule.split_keys(keys);
    EXPECT_LE(splits, rule.max_splits) << keys;
    EXPECT_GE(splits * each, keys);
    EXPECT_LT((splits - 1) * each, std::max<int64_t>(keys, 1));
    EXPECT_EQ(each % SplitRule::kTileKeys, 0);
  }
  EXPECT_EQ(rule.splits(0), 0);
  EXPECT_EQ(rule.splits(2048), 2);
  EXPECT_EQ(kScalarSplits.splits(2048), 8);
}

TEST(MlaWgmma, TakesDeepSeeksSizes) {
  EXPECT_TRUE(suits_wgmma({512, 64, 128, 128}, 128));
  EXPECT_TRUE(suits_wgmma({512, 64, 192, 256}, 16));
  EXPECT_FALSE(suits_wgmma({512, 64, 128, 128}, 15));
  EXPECT_FALSE(suits_wgmma({256, 64, 128, 128}, 128));
  EXPECT_FALSE(suits_wgmma({512, 32, 128, 128}, 128));
  EXPECT_TRUE(walks_splits(64, 128));
  EXPECT_FALSE(walks_splits(63, 128));
  EXPECT_FALSE(walks_splits(127, 64));
  EXPECT_TRUE(walks_splits(128, 40));
  EXPECT_FALSE(walks_splits(128, 20));
}

TEST(MlaKeysAtMost, AreThoseOfTheListsOrTheSequence) {
  Selection list;
  list.kind = Selection::Kind::list;
  list.capacity = 2048;
  list.tokens_per_unit = 1;
  MlaAttendParams p;
  EXPECT_EQ(keys_at_most(p, 5000), 5000);
  p.selection = &list;
  EXPECT_EQ(keys_at_most(p, 5000), 2048);
  EXPECT_EQ(keys_at_most(p, 100), 100);
  list.tokens_per_unit = 16;
  EXPECT_EQ(keys_at_most(p, 100), 112);  // the last unit is walked whole
  list.kind = Selection::Kind::range;
  EXPECT_EQ(keys_at_most(p, 5000), 5000);
}

}  // namespace
}  // namespace fovea::cuda::mla
