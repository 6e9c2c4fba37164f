#include "kernels/ref/ragged_attention.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/ragged_cases.h"

namespace fovea {
namespace {

using testing::RaggedCase;
using testing::RaggedProblem;

class RefRagged : public ::testing::TestWithParam<RaggedCase> {};

TEST_P(RefRagged, IsTheDefinition) {
  RaggedProblem problem(GetParam());
  ref::ragged_attend(problem.params());
  for (int32_t row = 0; row < problem.rows(); ++row) {
    for (int32_t h = 0; h < GetParam().heads; ++h) {
      double total = 0;
      std::vector<double> want(GetParam().v_dim, 0.0);
      for (int32_t j = problem.first_key(row); j < problem.end_key(row); ++j) {
        double dot = 0;
        for (int32_t i = 0; i < GetParam().k_dim + GetParam().shared_dim; ++i) {
          dot += static_cast<double>(problem.q(row, h)[i]) * problem.key(j, h, i);
        }
        const double w = std::exp(dot * problem.params().scale);
        total += w;
        for (int32_t i = 0; i < GetParam().v_dim; ++i) want[i] += w * problem.value(j, h)[i];
      }
      if (total == 0) {
        ASSERT_EQ(*problem.lse(row, h), -INFINITY);
        for (int32_t i = 0; i < GetParam().v_dim; ++i) ASSERT_EQ(problem.out(row, h)[i], 0.0f);
        continue;
      }
      ASSERT_NEAR(*problem.lse(row, h), std::log(total), 1e-5);
      for (int32_t i = 0; i < GetParam().v_dim; ++i) ASSERT_NEAR(problem.out(row, h)[i], want[i] / total, 1e-5);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, RefRagged, ::testing::ValuesIn(testing::ragged_cases()),
                         [](const auto& info) { return info.param.name; });

TEST(RefLseMerge, TwoHalvesAreTheWhole) { testing::expect_halves_merge(&ref::ragged_attend, &ref::lse_merge); }
TEST(RefLseMerge, NothingAndExtremes) { testing::expect_merge_of_nothing(&ref::lse_merge); }

}  // namespace
}  // namespace fovea
