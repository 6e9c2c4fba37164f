#include "model/cache_key.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <set>
#include <vector>

namespace fovea {
namespace {

ModelConfig latent_model() {
  ModelConfig c;
  c.head_dim = 576;
  c.num_kv_heads = 1;
  c.deepseek.emplace();
  c.deepseek->kv_lora_rank = 512;
  c.deepseek->rope_dim = 64;
  return c;
}

BlockKey key_of(const ModelConfig& config) {
  const std::vector<int32_t> tokens(16, 7);
  return BlockHasher(key_context(config)).key(nullptr, tokens);
}

// A number that differs in its last bit names other blocks: none goes through a text of six decimals.
TEST(CacheKey, EveryFieldThatDecidesTheContentIsInIt) {
  const auto nudge = [](double& x) { x = std::nextafter(x, 1e300); };
  const std::vector<std::function<void(ModelConfig&)>> changes = {
      [](ModelConfig&) {},
      [](ModelConfig& c) { c.rope.kind = RopeKind::llama3; },
      [&](ModelConfig& c) { nudge(c.rope.theta); },
      [&](ModelConfig& c) { nudge(c.rope.factor); },
      [&](ModelConfig& c) { nudge(c.rope.low_freq_factor); },
      [&](ModelConfig& c) { nudge(c.rope.high_freq_factor); },
      [&](ModelConfig& c) { nudge(c.rope.original_max_position); },
      [&](ModelConfig& c) { nudge(c.rope.beta_fast); },
      [&](ModelConfig& c) { nudge(c.rope.beta_slow); },
      [&](ModelConfig& c) { nudge(c.rope.attention_factor); },
      [&](ModelConfig& c) { nudge(c.rope.mscale_all_dim); },
      [](ModelConfig& c) { c.rope.truncate = false; },
      [](ModelConfig& c) { c.head_dim = 320; },
      [](ModelConfig& c) { c.num_kv_heads = 2; },
      [](ModelConfig& c) { c.sliding_window = 128; },
      [](ModelConfig& c) { c.deepseek->kv_lora_rank = 256; },
      [](ModelConfig& c) { c.deepseek->rope_dim = 32; },
      [](ModelConfig& c) { c.deepseek->rope_interleaved = false; },
      [](ModelConfig& c) { c.deepseek->index_heads = 4; },
      [](ModelConfig& c) { c.deepseek->index_dim = 128; },
      [](ModelConfig& c) { c.deepseek->index_topk = 2048; },
      [](ModelConfig& c) { c.deepseek->index_rope_interleaved = true; },
      [](ModelConfig& c) { c.deepseek.reset(); },
  };
  std::set<BlockKey> keys;
  for (const auto& change : changes) {
    ModelConfig c = latent_model();
    change(c);
    keys.insert(key_of(c));
  }
  EXPECT_EQ(keys.size(), changes.size());
}

}  // namespace
}  // namespace fovea
