// The harness over the shipped model: a prefill for each document, lineage and block size, and errors before the work.
#include "engine_test_util.h"

#include "eval/harness.h"

namespace fovea::testing {
namespace {

EngineOptions model() {
  EngineOptions o;
  o.model_dir = tiny_gqa();
  o.device = "cpu";
  o.threads = 2;
  o.sparse_min_context = 16;
  return o;
}

std::vector<RetrievalDocument> small_set() {
  auto set = load_retrieval_set(repo("tests/data/eval/two_documents.jsonl"));
  EXPECT_TRUE(set.ok());
  return filter_retrieval_set(*set, {}).value();  // one document: the other has no questions
}

TEST(Harness, OnePrefillServesAllRunsOfALineage) {
  EvalOptions options;
  options.runs = {{},
                  {"dense", "gsa_on_device[min_blocks=1]", 16, 8},
                  {"dense", "dense", 0, 8},
                  {"dense", "gsa_on_device[min_blocks=1]", 16, 16}};
  options.max_tokens = 8;
  size_t steps = 0, finished = 0;
  int replies = 0;
  options.progress = [&](const EvalProgress& p) {
    steps = p.steps;
    finished += p.prefilled == p.tokens;
  };
  options.reply = [&](const RetrievalDocument&, const RetrievalQuestion&, const EvalRun&, const std::string&, bool) { ++replies; };
  const auto result = evaluate(model(), small_set(), options);
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(steps, 2u) << "blocks of 16 and of 8";
  EXPECT_EQ(finished, 2u);
  EXPECT_EQ(replies, 8);
  ASSERT_EQ(result->rows.size(), 12u) << "four runs: all, absent, number";
  EXPECT_EQ(result->rows[0].run, options.runs[0]);
  EXPECT_EQ(result->rows[3].run, options.runs[1]) << "in the order of the runs, whichever engine served them";
  EXPECT_DOUBLE_EQ(result->rows[0].kv_bytes_share(), 1.0);
  EXPECT_LT(result->rows[3].kv_bytes_share(), 1.0);
  EXPECT_TRUE(result->traces.empty());
}

TEST(Harness, ATraceHasAScoreForEverySparseRun) {
  EvalOptions options;
  options.runs = {{}, {"dense", "gsa_on_device[min_blocks=1]", 16, 8}};
  options.max_tokens = 8;
  options.trace_questions = 1;
  const auto result = evaluate(model(), small_set(), options);
  ASSERT_TRUE(result.ok()) << result.status().message();
  ASSERT_EQ(result->traces.size(), 1u) << "dense chooses nothing";
  const RunTrace& t = result->traces[0];
  EXPECT_EQ(t.run, options.runs[1]);
  ASSERT_EQ(t.answers.size(), 1u);
  EXPECT_EQ(t.answers[0].task, "number");
  ASSERT_FALSE(t.answers[0].tokens.empty());
  EXPECT_FALSE(t.answers[0].tokens[0].text.empty());
  EXPECT_EQ(static_cast<int32_t>(t.answers[0].tokens.size()), t.answers[0].stats.output_tokens) << "rows of the question gave none";
  // 16 tokens are two blocks of 8, but the windows are three: every head reads the first block and the last two.
  const TraceScore score = t.score();
  double mass = 0;
  for (const AnswerTrace::Token& token : t.answers[0].tokens) {
    const size_t n = token.read.size();
    ASSERT_GT(n, 4u);
    ASSERT_EQ(token.mass.size(), n);
    for (size_t b = 0; b < n; ++b) EXPECT_NEAR(token.read[b], b == 0 || b + 2 >= n ? 1 : 0, 1e-5) << b << " of " << n;
    EXPECT_NEAR(std::accumulate(token.mass.begin(), token.mass.end(), 0.0), 1.0, 1e-4);
    mass += (token.mass[0] + token.mass[n - 2] + token.mass[n - 1]) / static_cast<double>(t.answers[0].tokens.size());
  }
  EXPECT_NEAR(score.mass, mass, 1e-4);
  EXPECT_LT(score.mass, 0.999);
  EXPECT_TRUE(score.recall >= 1.0 / 3 && score.recall < 1) << score.recall;
  for (const auto& head : t.answers[0].heads_read)
    EXPECT_EQ(head[0], static_cast<float>(t.answers[0].tokens.size())) << "every token read the first block";
  for (const EvalRow& r : result->rows) EXPECT_EQ(r.trace.has_value(), r.run == options.runs[1]);
}

TEST(Harness, AMethodThatCannotBeIsRefusedBeforeAModelIsLoaded) {
  EngineOptions nowhere;
  nowhere.model_dir = "/nonexistent";
  EvalOptions options;
  options.runs = {{}, {"dense", "magic", 0, 16}};
  const auto result = evaluate(nowhere, small_set(), options);
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.status().message().find("magic"), std::string::npos) << result.status().message();
}

TEST(Harness, AgreementIsWithDensePrefillAndDecode) {
  EngineOptions o = model();
  o.numerics = NumericsChoice::f32;
  std::vector<RetrievalDocument> set = small_set();
  set[0].questions[1].answer.clear();
  EvalOptions options;
  options.max_tokens = 8;
  // Three blocks of 8, the windows, do not hold the fact; five hundred tokens are the whole document.
  options.runs = {{}, {"dense", "gsa_on_device[min_blocks=1]", 16, 8}, {"dense", "gsa_on_device[min_blocks=1]", 512, 8}};
  const auto refused = evaluate(o, set, options);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find(set[0].questions[1].id), std::string::npos) << refused.status().message();

  options.agreement = true;
  const auto result = evaluate(o, set, options);
  ASSERT_TRUE(result.ok()) << result.status().message();
  ASSERT_EQ(result->rows.size(), 9u);
  for (const EvalRow& r : result->rows) {
    ASSERT_TRUE(r.agreement);
    EXPECT_EQ(r.agreement->answers, r.task == "all" ? 2 : 1);
    EXPECT_EQ(r.total, r.task == "absent" ? 0 : 1) << "one question is judged by agreement alone";
    EXPECT_GT(r.agreement->kl.size(), 1u);
  }
  EXPECT_EQ(result->rows[0].agreement->share(), 1.0);
  EXPECT_EQ(result->rows[0].agreement->kl_p99(), 0.0) << "dense, with itself";
  EXPECT_EQ(result->rows[0].agreement->kl.size(), result->rows[3].agreement->kl.size()) << "dense attention's tokens";
  EXPECT_LT(result->rows[3].agreement->share(), 1.0);
  EXPECT_GT(result->rows[3].agreement->kl_mean(), 0.1);
  EXPECT_EQ(result->rows[6].agreement->share(), 1.0);
  EXPECT_LT(result->rows[6].agreement->kl_p99(), 1e-6) << "everything was read";
}

}  // namespace
}  // namespace fovea::testing
