#include "kernels/cpu/moe/moe.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "kernels/common/random_weights.h"
#include "kernels/moe_cases.h"
#include "kernels/ref/moe.h"

namespace fovea {
namespace {

using testing::MoeCase;
using testing::MoeProblem;

void run(MoeProblem& problem, const MoeExpertsParams& p, int threads) {
  ThreadPool pool(threads);
  cpu::Linear linear;
  cpu::Moe moe;
  ASSERT_TRUE(linear.prepare(problem.limits(), threads, Numerics::f32).ok());
  ASSERT_TRUE(moe.prepare(problem.limits(), threads).ok());
  moe.experts(p, linear, pool);
}

class MoeExperts : public ::testing::TestWithParam<MoeCase> {};

TEST_P(MoeExperts, EqualTheReference) {
  MoeProblem problem(GetParam());
  ref::moe_experts(problem.params());
  const std::vector<float> want = problem.out;
  for (int threads : {1, 3}) {
    std::fill(problem.out.begin(), problem.out.end(), NAN);
    run(problem, problem.params(), threads);
    for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(problem.out[i], want[i], 2e-5f * (1 + std::abs(want[i]))) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, MoeExperts, ::testing::ValuesIn(testing::moe_cases()),
                         [](const auto& info) { return info.param.name; });

// Where an expert has at most 16 rows in either batch, a row's bits do not depend on the others.
TEST(MoeExpertsRows, ARowHasTheSameBitsAlone) {
  MoeProblem problem({"", 12, 48, 32, 6, 3});
  run(problem, problem.params(), 2);
  const std::vector<float> all = problem.out;
  for (int32_t t = 0; t < 12; ++t) {
    MoeExpertsParams p = problem.params();
    p.x += t * 48;
    p.ids += t * 3;
    p.weights += t * 3;
    p.rows = 1;
    run(problem, p, 1);
    ASSERT_TRUE(std::equal(problem.out.begin(), problem.out.begin() + 48, all.begin() + t * 48)) << "row " << t;
  }
}

// The same numbers, half of the matrices widened: each is read by its own type.
TEST(MoeExperts, MayMixTypes) {
  MoeProblem problem({"", 20, 40, 24, 6, 2, DType::bf16});
  ref::moe_experts(problem.params());
  const std::vector<float> want = problem.out;
  std::vector<std::vector<float>> wide;
  for (FeedForwardWeights& expert : problem.expert_weights) {
    for (WeightView* w : {&expert.up, &expert.down}) {
      std::vector<float>& to = wide.emplace_back(static_cast<size_t>(w->rows * w->cols));
      for (size_t i = 0; i < to.size(); ++i) to[i] = load_as_f32(w->data, w->dtype(), static_cast<int64_t>(i));
      *w = weight_view(to.data(), DType::f32, w->rows, w->cols);
    }
  }
  ref::moe_experts(problem.params());
  EXPECT_EQ(problem.out, want);
  run(problem, problem.params(), 2);
  for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(problem.out[i], want[i], 1e-4f * (1 + std::abs(want[i]))) << i;
}

// Each matrix of each expert of a type and with scales of its own. Rows of answers may be rounded to int8, those of prompts not.
TEST(MoeExperts, OfQuantisedWeights) {
  MoeProblem problem({"", 9, 256, 64, 4, 2});
  const WeightType types[] = {WeightType::fp8_e4m3, WeightType::q8_0, WeightType::int4, WeightType::q4_k};
  std::vector<RandomMatrix> matrices;
  matrices.reserve(12);
  const auto random = [&](WeightType type, int64_t rows, int64_t cols, float deviation) {
    return matrices.emplace_back(type, rows, cols, 32, matrices.size(), deviation).view();
  };
  for (size_t e = 0; e < 4; ++e) {
    const float deviation = 0.05f * static_cast<float>(1 + e);
    problem.expert_weights[e] = {random(types[e], 64, 256, deviation), random(types[3 - e], 64, 256, deviation),
                                 random(WeightType::q5_1, 256, 64, deviation)};
  }
  ref::moe_experts(problem.params());
  const std::vector<float> want = problem.out;
  ThreadPool pool(2);
  cpu::Linear linear;
  cpu::Moe moe;
  ASSERT_TRUE(linear.prepare(problem.limits(), 2, Numerics::f32, cpu::cpu_features(), cpu::Int8Rows::few).ok());
  for (const RandomMatrix& m : matrices)
    ASSERT_TRUE(linear.add_shape(static_cast<int>(m.cols), static_cast<int>(m.rows), m.type).ok());
  ASSERT_TRUE(moe.prepare(problem.limits(), 2).ok());
  const auto worst = [&](bool prompts) {
    MoeExpertsParams p = problem.params();
    p.as_many = prompts;
    moe.experts(p, linear, pool);
    float most = 0;
    for (size_t i = 0; i < want.size(); ++i) most = std::max(most, std::abs(problem.out[i] - want[i]) / (1 + std::abs(want[i])));
    return most;
  };
  EXPECT_LT(worst(true), 1e-4f);
  EXPECT_GT(worst(false), 1e-3f);
}

TEST(MoeRoute, EqualsTheReferenceAndDependsOnTheRowAlone) {
  for (DType dtype : {DType::bf16, DType::f32}) {
    MoeProblem problem({"", 50, 40, 8, 48, 6, dtype});
    std::vector<int32_t> want_ids(50 * 6), ids(50 * 6), one_ids(6);
    std::vector<float> want(50 * 6), weights(50 * 6), one(6);
    const WeightView gate = weight_view(problem.gate_weight.data(), dtype, 48, 40);
    MoeRouteParams p{problem.x.data(), 50, 40, gate, problem.bias.data(), 48, 8, 3, 2, 6};
    p.ids = want_ids.data();
    p.weights = want.data();
    ref::moe_route(p);
    ThreadPool pool(3);
    cpu::Moe moe;
    cpu::Linear linear;
    ASSERT_TRUE(moe.prepare(problem.limits(), 3).ok());
    ASSERT_TRUE(linear.prepare(problem.limits(), 3, Numerics::bf16).ok());
    p.ids = ids.data();
    p.weights = weights.data();
    moe.route(p, linear, pool);
    EXPECT_EQ(ids, want_ids);
    for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(weights[i], want[i], 1e-5f);
    for (int32_t t = 0; t < 50; ++t) {
      MoeRouteParams row = p;
      row.x += t * 40;
      row.rows = 1;
      row.ids = one_ids.data();
      row.weights = one.data();
      moe.route(row, linear, pool);
      ASSERT_TRUE(std::equal(one_ids.begin(), one_ids.end(), ids.begin() + t * 6)) << "row " << t;
      ASSERT_TRUE(std::equal(one.begin(), one.end(), weights.begin() + t * 6)) << "row " << t;
    }
  }
}

TEST(MoePrepare, NamesWhatIsWrong) {
  cpu::Moe moe;
  OpsLimits limits;
  limits.moe = {4, 5, 16, 16};
  EXPECT_NE(moe.prepare(limits, 1).message().find("5 of 4 a token"), std::string::npos);
}

}  // namespace
}  // namespace fovea
