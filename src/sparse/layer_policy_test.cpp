#include "sparse/layer_policy.h"

#include <gtest/gtest.h>

namespace fovea {
namespace {

std::vector<LayerRule> rules(const LayerPolicy& p) {
  std::vector<LayerRule> out;
  for (int32_t i = 0; i < p.num_layers(); ++i) out.push_back(p.rule(LayerIdx{i}));
  return out;
}

constexpr LayerRule kDense = LayerRule::dense, kOwn = LayerRule::own, kReuse = LayerRule::reuse;

TEST(LayerPolicy, EveryLayerChoosesUnlessListed) {
  EXPECT_EQ(rules(*LayerPolicy::make(3, {})), (std::vector<LayerRule>{kOwn, kOwn, kOwn}));
  EXPECT_EQ(rules(*LayerPolicy::make(4, {3, 0})), (std::vector<LayerRule>{kDense, kOwn, kOwn, kDense}));
  EXPECT_EQ(rules(*LayerPolicy::make(5, {0}, {2, 4})), (std::vector<LayerRule>{kDense, kOwn, kReuse, kOwn, kReuse}));
  EXPECT_EQ(rules(*LayerPolicy::make(2, {0, 1})), (std::vector<LayerRule>{kDense, kDense}));
}

TEST(LayerPolicy, ALayerThatIsNotThereIsRefusedByName) {
  for (int32_t layer : {-1, 3, 100}) {
    for (const bool reuse : {false, true}) {
      const auto p = reuse ? LayerPolicy::make(3, {}, {layer}) : LayerPolicy::make(3, {layer});
      ASSERT_FALSE(p.ok());
      const std::string& m = p.status().message();
      EXPECT_NE(m.find(reuse ? "reuse_layers" : "dense_layers"), std::string::npos) << m;
      EXPECT_NE(m.find("layer " + std::to_string(layer)), std::string::npos) << m;
    }
  }
}

TEST(LayerPolicy, ALayerHasOneRule) {
  const auto p = LayerPolicy::make(3, {1}, {1});
  ASSERT_FALSE(p.ok());
  EXPECT_NE(p.status().message().find("layer 1 is in both"), std::string::npos) << p.status().message();
  EXPECT_TRUE(LayerPolicy::make(3, {1, 1}, {2, 2}).ok());
}

TEST(LayerPolicy, ReuseNeedsAnEarlierChoice) {
  EXPECT_FALSE(LayerPolicy::make(3, {}, {0}).ok());
  // A dense layer chooses nothing that could be reused.
  const auto p = LayerPolicy::make(3, {0}, {1});
  ASSERT_FALSE(p.ok());
  EXPECT_NE(p.status().message().find("layer 1"), std::string::npos) << p.status().message();
}

}  // namespace
}  // namespace fovea
