#include "engine/loaded_model.h"

#include <gtest/gtest.h>

namespace fovea {
namespace {

// Embedding and head 7 x 4, per layer q, k, v, o 128 x 4 and 64 x 4, three of 5 x 4; norms of 4.
constexpr int64_t kLayer = 2 * 128 * 4 + 2 * 64 * 4 + 3 * 5 * 4 + 2 * 4;

LoadedModel model_of(bool tied) {
  LoadedModel m;
  ModelConfig& c = m.config;
  c.num_layers = 3;
  c.hidden_size = 4;
  c.intermediate_size = 5;
  c.num_heads = 2;
  c.num_kv_heads = 1;
  c.head_dim = 64;
  c.vocab_size = 7;
  c.tie_word_embeddings = tied;
  m.weights = dummy_weights(c, 1).value();
  return m;
}

TEST(Describe, CountsParametersWhateverTheirDtype) {
  for (const bool tied : {false, true}) {
    LoadedModel m = model_of(tied);
    const int64_t want = 3 * kLayer + 4 + (tied ? 1 : 2) * 7 * 4;
    EXPECT_EQ(describe(m, {}).parameters, want);
    m.weights.embed.type = WeightType::f32;  // as in checkpoints that keep it apart
    EXPECT_EQ(describe(m, {}).parameters, want);
    for (LayerWeights& layer : m.weights.layers) layer.down.type = WeightType::f32;  // the same matrices, widened
    EXPECT_EQ(describe(m, {}).parameters, want);
  }
}

TEST(Describe, CountsBytesAsTheyLieInMemory) {
  LoadedModel m = model_of(false);
  const int64_t before = describe(m, {}).weight_bytes;
  m.weights.embed.type = WeightType::f32;
  EXPECT_EQ(describe(m, {}).weight_bytes, before + 7 * 4 * 2);
}

}  // namespace
}  // namespace fovea
