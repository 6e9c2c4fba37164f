// Engines with method gsa, by every representation, for tests on every device.
#pragma once

#include "engine_test_util.h"

#include <string>
#include <utility>
#include <vector>

namespace fovea::testing {

using R = GsaRepresentation;

inline MethodOptions gsa(R representation, const std::string& label, int32_t budget_tokens = 128) {
  MethodOptions m;
  m.name = "gsa";
  m.label = label;
  m.gsa.representation = representation;
  m.gsa.budget_tokens = budget_tokens;
  return m;
}

inline EngineOptions gsa_options(std::vector<MethodOptions> methods) {
  EngineOptions o = exact_options(tiny_checkpoint("qwen3_llama3_8h2kv_d64"));
  o.decode_method = methods[0].label;
  o.methods = std::move(methods);
  o.sparse_min_context = 64;
  o.max_model_len = 1024;
  o.max_num_seqs = 4;
  return o;
}

inline const std::vector<std::pair<R, const char*>> kGsaKinds = {{R::hash, "hash"},           {R::mean, "mean"},
                                                                 {R::minmax, "minmax"},       {R::recency, "recency"},
                                                                 {R::mean_hash, "mean_hash"}, {R::oracle, "oracle"}};

inline std::vector<MethodOptions> gsa_methods(bool overlap) {
  std::vector<MethodOptions> out;
  for (const auto& [representation, name] : kGsaKinds) {
    out.push_back(gsa(representation, name));
    out.back().gsa.overlap = overlap;
  }
  return out;
}

// Two requests by each kind of gsa, side by side and thus by graphs: the answers of one engine are those of the other.
inline void expect_equal_answers(Engine& want, Engine& got) {
  const auto answers = [](Engine& e) {
    for (const auto& [representation, name] : kGsaKinds) {
      for (const int64_t prompt : {300, 150}) {
        Request r = greedy(random_prompt(static_cast<uint64_t>(prompt), prompt, e.model().vocab_size), 30);
        r.decode_method = name;
        EXPECT_TRUE(e.submit(r).ok());
      }
    }
    return run_all(e);
  };
  const Answers a = answers(want), b = answers(got);
  ASSERT_EQ(a.size(), 2 * kGsaKinds.size());
  ASSERT_EQ(b.size(), a.size());
  auto g = b.begin();
  for (auto w = a.begin(); w != a.end(); ++w, ++g) {
    SCOPED_TRACE(kGsaKinds[static_cast<size_t>(std::distance(a.begin(), w)) / 2].second);
    EXPECT_EQ(g->second.tokens, w->second.tokens);
    EXPECT_EQ(g->second.stats.kv_bytes_read, w->second.stats.kv_bytes_read);
    EXPECT_EQ(g->second.stats.summary_bytes_read, w->second.stats.summary_bytes_read);
    EXPECT_LT(g->second.stats.kv_bytes_read, g->second.stats.kv_bytes_dense);
  }
}

inline void expect_steady_gsa(EngineImpl& engine) {
  std::vector<std::string> names;
  for (const auto& [representation, name] : kGsaKinds) names.push_back(name);
  expect_steady_decodes(engine, names);
}

}  // namespace fovea::testing
