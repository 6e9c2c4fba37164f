#include "kernels/ref/attention.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/attention_cases.h"

namespace fovea {
namespace {

using testing::AttentionCase;
using testing::AttentionProblem;

constexpr double kTolerance = 2e-6;  // float64 inside, one rounding to float32 at the end

// Attention by its definition over contiguous K and V: no pages, no lists, one exponential per key.
void expect_naive(AttentionProblem& problem) {
  const AttentionCase& c = problem.shape();
  const AttentionParams& p = problem.params();
  const int64_t d = c.head_dim;
  for (int32_t row = 0; row < problem.rows(); ++row) {
    for (int32_t h = 0; h < c.heads; ++h) {
      const int32_t s = problem.row_seq(row);
      const float* q = &problem.q()[(static_cast<int64_t>(row) * c.heads + h) * d];
      const int64_t first = static_cast<int64_t>(problem.kv_head_of(h)) * c.seqs[s].len;
      double denominator = 0;
      std::vector<double> numerator(d, 0.0);
      for (int64_t pos = 0; pos < c.seqs[s].len; ++pos) {
        if (!problem.sees(row, h, pos)) continue;
        const float* k = &problem.keys(s)[(first + pos) * d];
        const float* v = &problem.values(s)[(first + pos) * d];
        double x = 0;
        for (int64_t i = 0; i < d; ++i) x += static_cast<double>(q[i]) * k[i];
        x *= p.scale;
        if (c.soft_cap > 0) x = c.soft_cap * std::tanh(x / c.soft_cap);
        x -= static_cast<double>(problem.slope(h)) * static_cast<double>(problem.row_pos(row) - pos);
        const double weight = std::exp(x);
        denominator += weight;
        for (int64_t i = 0; i < d; ++i) numerator[i] += weight * v[i];
      }
      const int64_t at = static_cast<int64_t>(row) * c.heads + h;
      const float lse = problem.lse()[at];
      if (denominator == 0) {
        EXPECT_EQ(lse, -std::numeric_limits<float>::infinity()) << "row " << row << " head " << h;
      } else {
        ASSERT_NEAR(lse, std::log(denominator), kTolerance * 10) << "row " << row << " head " << h;
      }
      for (int64_t i = 0; i < d; ++i) {
        const double want = denominator == 0 ? 0 : numerator[i] / denominator;
        ASSERT_NEAR(problem.out()[at * d + i], want, kTolerance) << "row " << row << " head " << h << " dim " << i;
      }
    }
  }
}

class RefAttention : public ::testing::TestWithParam<AttentionCase> {};

TEST_P(RefAttention, HeadRangesEqualTheWholeCall) {
  AttentionProblem problem(GetParam());
  ref::paged_attention(problem.params());
  const std::vector<float> out = problem.out(), lse = problem.lse();
  std::fill(problem.out().begin(), problem.out().end(), NAN);
  std::fill(problem.lse().begin(), problem.lse().end(), NAN);
  for (int32_t first = 0; first < GetParam().kv_heads; ++first) {
    testing::HeadRange range(problem.params(), first, 1);
    ref::paged_attention(range.params);
  }
  ASSERT_EQ(problem.out(), out);
  ASSERT_EQ(problem.lse(), lse);
}

TEST_P(RefAttention, EqualsTheDefinition) {
  AttentionProblem problem(GetParam());
  ref::paged_attention(problem.params());
  expect_naive(problem);
}

// A key after the query, though another row of the call reads it, changes nothing, were it NaN.
TEST_P(RefAttention, LaterRowsKeysAreNotMultiplied) {
  AttentionProblem problem(GetParam());
  ref::paged_attention(problem.params());
  const std::vector<float> before = problem.out();
  const AttentionCase& c = GetParam();
  for (int32_t s = 0; s < static_cast<int32_t>(c.seqs.size()); ++s) {
    if (c.seqs[s].rows > 0 && c.seqs[s].len > 0) problem.write_token(s, c.seqs[s].len - 1, NAN, NAN);
  }
  ref::paged_attention(problem.params());
  const int64_t width = static_cast<int64_t>(c.heads) * c.head_dim;
  for (int32_t row = 0; row < problem.rows(); ++row) {
    if (problem.row_pos(row) == c.seqs[problem.row_seq(row)].len - 1) continue;
    for (int64_t i = row * width; i < (row + 1) * width; ++i) ASSERT_EQ(problem.out()[i], before[i]) << "row " << row;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, RefAttention, ::testing::ValuesIn(testing::attention_cases()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Padded, RefAttention, ::testing::ValuesIn(testing::padded_attention_cases()),
                         [](const auto& info) { return info.param.name; });

// The classic incremental example: attention over a cache that grows token by token equals attention over the
// whole.
TEST(RefAttentionGrowth, CacheGrownTokenByTokenEqualsTheWhole) {
  constexpr int32_t kLen = 37, kHeads = 4, kDim = 64;
  AttentionProblem whole({.name = "whole", .heads = kHeads, .head_dim = kDim, .seqs = {{kLen, kLen}}});
  ref::paged_attention(whole.params());
  expect_naive(whole);
  for (int32_t len = 1; len <= kLen; ++len) {
    AttentionParams step = whole.params();
    const int32_t indptr[2] = {0, 1};
    std::vector<float> out(kHeads * kDim, NAN);
    step.q = whole.q().data() + static_cast<int64_t>(len - 1) * kHeads * kDim;
    step.q_indptr = indptr;
    step.seq_len = &len;
    step.out = out.data();
    step.lse = nullptr;
    ref::paged_attention(step);
    for (int32_t i = 0; i < kHeads * kDim; ++i) {
      ASSERT_EQ(out[i], whole.out()[static_cast<int64_t>(len - 1) * kHeads * kDim + i]) << "length " << len;
    }
  }
}

TEST(RefAttentionNarrow, RowsIn16BitsAreThoseOfFloat32Rounded) {
  for (const testing::AttentionCase& c : testing::narrow_cases()) {
    for (const DType dtype : {DType::bf16, DType::f16}) {
      AttentionProblem problem(c);
      testing::NarrowActivations narrow(problem, dtype);
      ref::paged_attention(problem.params());
      ref::paged_attention(narrow.params());
      EXPECT_EQ(narrow.out(), narrow.rounded(problem.out())) << c.name;
    }
  }
}

// One KV head, one key: the softmax is 1 whatever the score, so the value itself comes out.
TEST(RefAttentionGrowth, SingleKeyReturnsItsValueAndScore) {
  AttentionProblem problem({.name = "one", .heads = 2, .kv_heads = 1, .seqs = {{1, 1}}});
  ref::paged_attention(problem.params());
  for (int32_t h = 0; h < 2; ++h) {
    double score = 0;
    for (int32_t i = 0; i < 64; ++i) {
      EXPECT_EQ(problem.out()[h * 64 + i], problem.values(0)[i]);
      score += static_cast<double>(problem.q()[h * 64 + i]) * problem.keys(0)[i];
    }
    EXPECT_NEAR(problem.lse()[h], score / 8, 1e-5);
  }
}

// Scales of quantised KV: k_scale sharpens the scores, v_scale multiplies the result.
TEST(RefAttentionScales, MultiplyScoresAndValues) {
  AttentionProblem plain({.name = "plain", .seqs = {{2, 50}}, .dtype = DType::f32});
  AttentionProblem scaled({.name = "scaled", .seqs = {{2, 50}}, .dtype = DType::f32});
  const float twice[] = {2.0f, 2.0f}, thrice[] = {3.0f, 3.0f};
  plain.params().scale *= 2;
  scaled.params().kv.k_scale = twice;
  scaled.params().kv.v_scale = thrice;
  ref::paged_attention(plain.params());
  ref::paged_attention(scaled.params());
  for (size_t i = 0; i < plain.out().size(); ++i) EXPECT_NEAR(scaled.out()[i], 3 * plain.out()[i], 1e-5);
}

}  // namespace
}  // namespace fovea
