// Wilson intervals against scipy, and rows that add up.
#include "eval/eval_score.h"

#include <gtest/gtest.h>

namespace fovea {
namespace {

// Values of scipy.stats.binomtest(right, total).proportion_ci(method="wilson").
TEST(Wilson, MatchesScipy) {
  const struct {
    int64_t right, total;
    double low, high;
  } cases[] = {
      {0, 1, 0.0, 0.7934506856227626},
      {1, 1, 0.2065493143772374, 1.0},
      {0, 200, 0.0, 0.0188453263772666},
      {200, 200, 0.9811546736227334, 1.0},
      {5, 10, 0.2365930905125641, 0.7634069094874359},
      {196, 200, 0.9497129130941735, 0.9921955735836505},
  };
  for (const auto& c : cases) {
    const Interval i = wilson_interval(c.right, c.total);
    EXPECT_NEAR(i.low, c.low, 1e-9) << c.right << "/" << c.total;
    EXPECT_NEAR(i.high, c.high, 1e-9) << c.right << "/" << c.total;
  }
}

TEST(Wilson, HoldsItsShareAndStaysInRange) {
  for (int64_t n = 1; n <= 400; n = n * 3 / 2 + 1) {
    for (int64_t right = 0; right <= n; ++right) {
      const Interval i = wilson_interval(right, n);
      const double p = double(right) / double(n);
      EXPECT_TRUE(0 <= i.low && i.low <= p && p <= i.high && i.high <= 1 && i.low < i.high) << right << "/" << n;
    }
  }
  EXPECT_EQ(wilson_interval(0, 0).low, 0.0);
  EXPECT_EQ(wilson_interval(0, 0).high, 1.0);
}

RequestStats read(int64_t kv, int64_t summaries, int64_t dense) {
  RequestStats s;
  s.kv_bytes_read = kv;
  s.summary_bytes_read = summaries;
  s.kv_bytes_dense = dense;
  return s;
}

TEST(EvalScores, RowsAreOrderedAndAllSumsTheTasks) {
  EvalScores scores({{}, {"dense", "gsa", 512, 16}});
  scores.add_answer(8192, 1, "word", true, read(10, 5, 100));
  scores.add_answer(8192, 1, "kv", false, read(20, 5, 100));
  scores.add_answer(8192, 0, "kv", true, read(100, 0, 100));
  scores.add_answer(2048, 1, "kv", true, read(30, 0, 100));
  scores.add_prefill(8192, 1, 30, 100);
  scores.add_prefill(8192, 1, 10, 100);
  scores.set_trace(8192, 1, {0.7, 0.5});
  const std::vector<EvalRow> rows = scores.rows();
  std::vector<std::string> order;
  for (const EvalRow& r : rows) order.push_back(std::to_string(r.length) + " " + r.run.decode_method + " " + r.task);
  EXPECT_EQ(order, (std::vector<std::string>{"2048 gsa all", "2048 gsa kv", "8192 dense all", "8192 dense kv", "8192 gsa all",
                                             "8192 gsa kv", "8192 gsa word"}));
  const EvalRow& all = rows[4];
  EXPECT_EQ(all.right, 1);
  EXPECT_EQ(all.total, 2);
  EXPECT_DOUBLE_EQ(all.exact(), 0.5);
  EXPECT_DOUBLE_EQ(all.kv_bytes_share(), 0.2);
  EXPECT_DOUBLE_EQ(all.prefill_share(), 0.2);
  EXPECT_DOUBLE_EQ(rows[5].prefill_share(), 0.2) << "the document is the same for every task";
  ASSERT_TRUE(all.trace.has_value());
  EXPECT_EQ(all.trace->recall, 0.5);
  EXPECT_FALSE(rows[2].trace.has_value());
  EXPECT_DOUBLE_EQ(rows[0].prefill_share(), 1.0) << "nothing was counted: nothing was left out";
}

TEST(EvalRow, TheShareOfNothingIsOne) {
  EXPECT_EQ(EvalRow().kv_bytes_share(), 1.0);
  EXPECT_EQ(EvalRow().exact(), 0.0);
}

}  // namespace
}  // namespace fovea
