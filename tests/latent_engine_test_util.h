// Engines over models with latent attention, for tests on every device.
#pragma once

#include "engine_test_util.h"

#include <string>
#include <vector>

namespace fovea::testing {

inline const std::vector<std::string> kLatentCheckpoints = {"deepseek_dense1_bias", "deepseek_groups", "deepseek_plain",
                                                            "glm_shared_indexer"};

inline EngineOptions latent_options(const std::string& checkpoint) {
  EngineOptions o = exact_options(tiny_checkpoint(checkpoint));
  o.max_model_len = 512;
  o.max_num_batched_tokens = 64;  // prompts in several chunks
  o.max_num_seqs = 8;
  o.enable_prefix_caching = false;
  return o;
}

// Requests by each method one by one, then all of them side by side: the answers of one engine are those of the other.
inline void expect_equal_latent_answers(Engine& want, Engine& got) {
  std::vector<Request> all;
  for (const char* method : {"dense", "dsa"}) {
    for (const int64_t prompt : {1, 31, 32, 33, 65, 200}) {
      SCOPED_TRACE(method + std::string(" ") + std::to_string(prompt));
      Request r = greedy(random_prompt(static_cast<uint64_t>(prompt), prompt, want.model().vocab_size), 20);
      r.decode_method = r.prefill_method = method;
      all.push_back(r);
      const Result1 a = run_one(want, r), b = run_one(got, r);
      EXPECT_EQ(b.tokens, a.tokens);
      EXPECT_EQ(b.stats.kv_bytes_read, a.stats.kv_bytes_read);
      EXPECT_EQ(b.stats.kv_bytes_dense, a.stats.kv_bytes_dense);
      EXPECT_EQ(b.stats.summary_bytes_read, a.stats.summary_bytes_read);
      EXPECT_EQ(b.stats.prefill_pairs_read, a.stats.prefill_pairs_read);
      EXPECT_EQ(b.stats.prefill_pairs_dense, a.stats.prefill_pairs_dense);
      ASSERT_EQ(b.logits.size(), a.logits.size());
      for (size_t i = 0; i < b.logits.size(); ++i) EXPECT_LE(max_difference(b.logits[i], a.logits[i]), 1e-3f) << i;
    }
  }
  std::vector<std::vector<TokenId>> tokens[2];
  for (Engine* engine : {&want, &got}) {
    for (const Request& r : all) ASSERT_TRUE(engine->submit(r).ok());
    for (const auto& [key, r] : run_all(*engine)) tokens[engine == &got].push_back(r.tokens);
  }
  EXPECT_EQ(tokens[1], tokens[0]);
}

}  // namespace fovea::testing
