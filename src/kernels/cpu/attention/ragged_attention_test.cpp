#include "kernels/cpu/attention/ragged_attention.h"

#include <cmath>

#include "kernels/cpu/simd_targets_test_util.h"
#include "kernels/ragged_cases.h"
#include "kernels/ref/ragged_attention.h"

namespace fovea {
namespace {

using testing::RaggedCase;
using testing::RaggedProblem;

void attend(const RaggedAttentionParams& p, int threads) {
  ThreadPool pool(threads);
  cpu::RaggedAttention attention;
  OpsLimits limits;
  limits.mla = {16, p.shared_dim, p.k_dim, p.v_dim};
  ASSERT_TRUE(attention.prepare(limits, threads).ok());
  attention.run(p, pool);
}
void attend_alone(const RaggedAttentionParams& p) { attend(p, 1); }
void merge(const LseMergeParams& p) {
  ThreadPool pool(2);
  cpu::lse_merge(p, pool);
}

class RaggedAttention : public ::testing::TestWithParam<RaggedCase> {};

TEST_P(RaggedAttention, EqualsTheReferenceOnEveryTarget) {
  RaggedProblem want(GetParam());
  ref::ragged_attend(want.params());
  cpu::for_each_target([&] {
    RaggedProblem problem(GetParam());
    attend(problem.params(), 2);
    for (int32_t row = 0; row < problem.rows(); ++row) {
      for (int32_t h = 0; h < GetParam().heads; ++h) {
        if (std::isinf(*want.lse(row, h))) {
          ASSERT_EQ(*problem.lse(row, h), *want.lse(row, h));
        } else {
          ASSERT_NEAR(*problem.lse(row, h), *want.lse(row, h), 1e-5f * std::max(1.0f, std::abs(*want.lse(row, h))));
        }
        for (int32_t i = 0; i < GetParam().v_dim; ++i)
          ASSERT_NEAR(problem.out(row, h)[i], want.out(row, h)[i], 2e-5f) << "row " << row;
      }
    }
  });
}

// Without causality every row sees the same keys: its bits are those of the row alone.
TEST_P(RaggedAttention, ARowHasTheSameBitsAlone) {
  RaggedProblem problem(GetParam()), again(GetParam());
  attend(problem.params(), 2);
  for (int32_t s = 0, row = 0; s < problem.params().num_seqs; ++s) {
    for (; row < problem.params().q_indptr[s + 1]; ++row) {
      const int32_t indptr[] = {0, 1}, keys[] = {problem.first_key(row), problem.end_key(row)};
      RaggedAttentionParams p = again.params();
      p.q += row * p.q_stride;
      p.out += row * p.out_stride;
      p.lse += row * p.lse_stride;
      p.rows = p.num_seqs = 1;
      p.q_indptr = indptr;
      p.kv_indptr = keys;
      attend(p, 1);
      for (int32_t h = 0; h < GetParam().heads; ++h) {
        ASSERT_EQ(*again.lse(row, h), *problem.lse(row, h)) << "row " << row;
        for (int32_t i = 0; i < GetParam().v_dim; ++i) ASSERT_EQ(again.out(row, h)[i], problem.out(row, h)[i]) << "row " << row;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, RaggedAttention, ::testing::ValuesIn(testing::ragged_cases()),
                         [](const auto& info) { return info.param.name; });

TEST(LseMerge, TwoHalvesAreTheWhole) { testing::expect_halves_merge(&attend_alone, &merge); }
TEST(LseMerge, NothingAndExtremes) { testing::expect_merge_of_nothing(&merge); }

}  // namespace
}  // namespace fovea
