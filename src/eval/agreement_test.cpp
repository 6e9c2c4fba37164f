// Scores of agreement: the divergence against sums by hand, and what a mean and a rank say.
#include "eval/agreement.h"

#include <gtest/gtest.h>

#include <cmath>

namespace fovea {
namespace {

TEST(KlDivergence, IsThatOfTheSoftmaxes) {
  const float p[] = {std::log(0.5f), std::log(0.25f), std::log(0.25f)}, q[] = {std::log(0.2f), std::log(0.4f), std::log(0.4f)};
  const double expected = 0.5 * std::log(0.5 / 0.2) + 2 * 0.25 * std::log(0.25 / 0.4);
  EXPECT_NEAR(kl_divergence(p, q), expected, 1e-7);
  EXPECT_NEAR(kl_divergence(q, p), 0.2 * std::log(0.2 / 0.5) + 2 * 0.4 * std::log(0.4 / 0.25), 1e-7) << "it is not symmetric";
  EXPECT_EQ(kl_divergence(p, p), 0.0);
}

TEST(KlDivergence, IsThatOfLogitsWhateverIsAddedToThem) {
  const float p[] = {1, 2, 3}, q[] = {3, 1, 2};
  float shifted[] = {10003, 10001, 10002};
  EXPECT_NEAR(kl_divergence(p, shifted), kl_divergence(p, q), 1e-6);
  const float far[] = {-500, 0, 500};  // a softmax of 0, 0 and 1
  EXPECT_NEAR(kl_divergence(far, p), std::log(1 + std::exp(-1.0) + std::exp(-2.0)), 1e-6);
  EXPECT_TRUE(std::isfinite(kl_divergence(p, far)));
}

TEST(AgreementScore, FirstDifferenceIsOfThoseThatDiffer) {
  AgreementScore all;
  EXPECT_EQ(all.share(), 1.0);
  EXPECT_FALSE(all.first_difference());
  all.add({.answers = 1, .equal = 1, .same_tokens = 0, .kl = {}});
  EXPECT_FALSE(all.first_difference());
  all.add({.answers = 1, .equal = 0, .same_tokens = 3, .kl = {}});
  all.add({.answers = 1, .equal = 0, .same_tokens = 6, .kl = {}});
  EXPECT_DOUBLE_EQ(all.share(), 1.0 / 3);
  EXPECT_DOUBLE_EQ(all.first_difference().value(), 4.5);
}

TEST(AgreementScore, The99thPercentileIsANearestRank) {
  AgreementScore s;
  EXPECT_EQ(s.kl_p99(), 0.0);
  EXPECT_EQ(s.kl_mean(), 0.0);
  for (int i = 100; i > 0; --i) s.kl.push_back(static_cast<float>(i));
  EXPECT_EQ(s.kl_p99(), 99.0);
  EXPECT_EQ(s.kl_mean(), 50.5);
  s.kl.push_back(1000);
  EXPECT_EQ(s.kl_p99(), 100.0) << "of 101 the 100th";
  s.kl = {7};
  EXPECT_EQ(s.kl_p99(), 7.0);
}

}  // namespace
}  // namespace fovea
