// Request::trace_mass: the true attention beside what was chosen, for the rows that produce an answer's tokens.
#include "engine_test_util.h"

#include <cmath>
#include <tuple>

namespace fovea::testing {
namespace {

EngineOptions sparse_options(bool reference) {
  EngineOptions o = exact_options(tiny_checkpoint("qwen3_llama3_8h2kv_d64"));
  if (reference) o.device = "cpu";
  MethodOptions m;
  m.name = "gsa_on_device";
  m.gsa.budget_tokens = 64;
  o.methods = {m};
  o.decode_method = "gsa_on_device";
  o.sparse_min_context = 64;
  o.use_reference_ops = reference;
  return o;
}

using Masses = std::map<std::tuple<int64_t, int32_t>, std::vector<float>>;  // by position and layer

Masses masses_of(bool reference, bool wanted, int* rows) {
  const auto engine = make_engine(sparse_options(reference));
  const ModelShape& shape = engine->model().shape;
  Masses out;
  engine->set_trace([&](const SelectionTrace& t) {
    ++*rows;
    EXPECT_EQ(t.blocks, (t.position + 16) / 16);
    EXPECT_TRUE(t.block_mass == nullptr || (wanted && !t.prefill));
    if (t.block_mass) out[{t.position, t.layer.value}].assign(t.block_mass, t.block_mass + shape.kv_heads * t.blocks);
  });
  Request r = greedy(random_prompt(5, 300, engine->model().vocab_size), 4);
  r.trace = true;
  r.trace_mass = wanted;
  run_one(*engine, std::move(r));
  return out;
}

TEST(TraceMass, EveryAnswerRowSumsToOneByHead) {
  int rows = 0;
  const Masses masses = masses_of(false, true, &rows);
  const auto layers = static_cast<size_t>(make_engine(sparse_options(false))->model().shape.num_layers);
  EXPECT_EQ(masses.size(), 3 * layers) << "the prompt's last row made the first token, in a prefill";
  EXPECT_EQ(rows, 303 * static_cast<int>(layers));
  for (const auto& [key, mass] : masses) {
    const size_t blocks = static_cast<size_t>((std::get<0>(key) + 16) / 16);
    for (size_t head = 0; head < mass.size() / blocks; ++head) {
      double sum = 0;
      for (size_t b = 0; b < blocks; ++b) sum += mass[head * blocks + b];
      EXPECT_NEAR(sum, 1.0, 1e-5);
    }
  }
}

TEST(TraceMass, TheScalarKernelsAgree) {
  int rows = 0;
  const Masses fast = masses_of(false, true, &rows), reference = masses_of(true, true, &rows);
  ASSERT_EQ(fast.size(), reference.size());
  for (const auto& [key, mass] : fast) EXPECT_LT(max_difference(mass, reference.at(key)), 1e-4f);
}

TEST(TraceMass, NoOneAskedNoOnePays) {
  int rows = 0;
  EXPECT_TRUE(masses_of(false, false, &rows).empty());
  EXPECT_GT(rows, 0);
}

}  // namespace
}  // namespace fovea::testing
