// A decode step's forward pass takes no memory from the heap: everything was sized when the engine was made. The rest of the step
// takes what an Output holds: the vector of its token.
#include "engine_test_util.h"

#include "base/count_allocations_test_util.h"

namespace fovea::testing {
namespace {

// Counting runs from the first attention of a step to its logits: every layer, every kind of operation.
void expect_none(EngineOptions o) {
  o.device = "cpu";  // a GPU's steps are counted by gpu_engine_test; the fake device queues closures, on the heap
  std::vector<std::string> labels = {"dense"};
  for (const MethodOptions& m : o.methods) labels.push_back(m.label.empty() ? m.name : m.label);
  o.sparse_min_context = 256;
  o.max_num_batched_tokens = 128;
  o.enable_prefix_caching = false;
  auto engine = make_engine(o);
  ASSERT_TRUE(engine);
  for (const std::string& method : labels) {
    SCOPED_TRACE(method);
    Request r = greedy(random_prompt(5, 600, engine->model().vocab_size), 12);
    r.decode_method = method;
    r.trace = true;
    int64_t steps = 0, worst = 0, before = -1;  // -1: not counting
    engine->set_trace([&](const SelectionTrace& t) {
      if (t.layer.value == 0 && before < 0) before = heap_allocations();
    });
    engine->set_logits_tap([&](RequestId, int32_t, std::span<const float>) {
      const int64_t taken = heap_allocations() - before;
      ++steps;
      if (steps > 2) worst = std::max(worst, taken);  // the first decode steps may meet a shape for the first time
    });
    ASSERT_TRUE(engine->submit(r).ok());
    std::vector<Output> outputs;
    for (bool more = true; more;) {
      outputs.clear();
      more = *engine->step(&outputs);
      before = -1;
    }
    EXPECT_EQ(steps, 12);
    EXPECT_EQ(worst, 0);
  }
}

TEST(NoAllocation, InTheForwardPassOfAStep) {
  EngineOptions o = exact_options(tiny_gqa());
  MethodOptions m;
  m.name = "gsa_on_device";
  m.gsa.budget_tokens = 128;
  o.methods = {m};
  for (const GsaRepresentation r : {GsaRepresentation::hash, GsaRepresentation::mean, GsaRepresentation::minmax,
                                    GsaRepresentation::recency, GsaRepresentation::mean_hash, GsaRepresentation::oracle}) {
    m.name = "gsa";
    m.label = "gsa " + std::to_string(static_cast<int>(r));
    m.gsa.representation = r;
    m.gsa.overlap = r != GsaRepresentation::mean;
    o.methods.push_back(m);
  }
  m.label = "gsa, asymmetric codes";
  m.gsa.representation = GsaRepresentation::hash;
  m.gsa.codes = GsaCodes::asymmetric;
  m.gsa.length_factor = true;
  m.gsa.overlap = false;
  m.gsa.budget_split = BudgetSplit::mass;
  m.gsa.top_p = 0.9;
  o.methods.push_back(m);
  expect_none(o);
}

// Scheduling, packing, committing and reporting of steps in which every sequence decodes.
TEST(NoAllocation, AroundItTheOutputsTokensAlone) {
  for (const int32_t answers : {1, 4, 16}) {
    EngineOptions o = exact_options(tiny_checkpoint("qwen3_llama3_8h2kv_d64"));
    o.device = "cpu";
    o.max_model_len = 512;
    auto engine = make_engine(o);
    ASSERT_TRUE(engine);
    for (int32_t i = 0; i < answers; ++i) ASSERT_TRUE(engine->submit(greedy(random_prompt(i, 20, 64), 100)).ok());
    std::vector<Output> outputs;
    outputs.reserve(64);
    int64_t worst = 0;
    for (int step = 0; step < 90; ++step) {
      outputs.clear();
      const int64_t before = heap_allocations();
      ASSERT_TRUE(engine->step(&outputs).ok());
      if (step > 20) worst = std::max(worst, heap_allocations() - before);
    }
    ASSERT_EQ(outputs.size(), static_cast<size_t>(answers));
    EXPECT_LE(worst, answers);
  }
}

TEST(NoAllocation, NorWithLatentsAnIndexerAndExperts) {
  EngineOptions o = exact_options(tiny_dsa());
  MethodOptions m;
  m.name = "dsa";
  o.methods = {m};
  expect_none(o);
}

}  // namespace
}  // namespace fovea::testing
