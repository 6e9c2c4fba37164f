#include "kernels/cpu/mla/mla_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "kernels/cpu/simd_targets_test_util.h"
#include "kernels/mla_cases.h"
#include "kernels/ref/mla.h"

namespace fovea {
namespace {

using testing::MlaCase;
using testing::MlaProblem;

void attend(const MlaCase& c, const MlaAttendParams& p, int threads) {
  ThreadPool pool(threads);
  cpu::MlaAttention attention;
  ASSERT_TRUE(attention.prepare(testing::mla_limits(c), threads).ok());
  attention.run(p, pool);
}

void expect_close(const std::vector<float>& got, const std::vector<float>& want, float tolerance) {
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::isinf(want[i])) {
      ASSERT_EQ(got[i], want[i]) << i;
    } else {
      ASSERT_NEAR(got[i], want[i], tolerance * std::max(1.0f, std::abs(want[i]))) << i;
    }
  }
}

class MlaAttention : public ::testing::TestWithParam<MlaCase> {};

TEST_P(MlaAttention, EqualsTheReferenceOnEveryTarget) {
  MlaProblem problem(GetParam());
  ref::mla_attend(problem.params());
  const std::vector<float> out = problem.out(), lse = problem.lse();
  cpu::for_each_target([&] {
    std::fill(problem.out().begin(), problem.out().end(), NAN);
    std::fill(problem.lse().begin(), problem.lse().end(), NAN);
    attend(GetParam(), problem.params(), 1);
    expect_close(problem.out(), out, 3e-5f);
    expect_close(problem.lse(), lse, 2e-5f);
  });
}

// Not by the threads, and not by the rows beside it: so not by chunks of a prefill either.
TEST_P(MlaAttention, NoBitIsChangedByThreadsOrOtherRows) {
  MlaProblem problem(GetParam());
  const MlaCase& c = GetParam();
  attend(c, problem.params(), 1);
  const std::vector<float> out = problem.out(), lse = problem.lse();
  for (int threads : {2, 3}) {
    std::fill(problem.out().begin(), problem.out().end(), NAN);
    attend(c, problem.params(), threads);
    ASSERT_EQ(problem.out(), out) << threads << " threads";
    ASSERT_EQ(problem.lse(), lse) << threads << " threads";
  }
  for (int32_t row = 0; row < problem.rows(); ++row) {
    if (problem.row_pos(row) < 0) continue;  // it pads
    testing::MlaRowAlone one(problem, problem.params(), row);
    const int64_t width = int64_t{c.heads} * c.shape.latent;
    std::vector<float> one_out(width, NAN), one_lse(c.heads, NAN);
    const int32_t indptr[] = {0, 1}, len = static_cast<int32_t>(problem.row_pos(row) + 1);
    one.params.q_indptr = indptr;
    one.params.seq_len = &len;
    one.params.out = one_out.data();
    one.params.lse = one_lse.data();
    attend(c, one.params, 2);
    for (int64_t i = 0; i < width; ++i) ASSERT_EQ(one_out[i], out[row * width + i]) << "row " << row;
    for (int32_t h = 0; h < c.heads; ++h) ASSERT_EQ(one_lse[h], lse[row * c.heads + h]) << "row " << row;
  }
}

// An entry after the query is not multiplied, though a later row of the same call reads it.
TEST_P(MlaAttention, LaterRowsEntriesAreNotMultiplied) {
  MlaProblem problem(GetParam());
  const MlaCase& c = GetParam();
  attend(c, problem.params(), 1);
  const std::vector<float> before = problem.out();
  for (int32_t s = 0; s < static_cast<int32_t>(c.seqs.size()); ++s) {
    if (c.seqs[s].rows > 0 && c.seqs[s].len > 0) problem.write_token(s, c.seqs[s].len - 1, NAN);
  }
  attend(c, problem.params(), 1);
  const int64_t width = int64_t{c.heads} * c.shape.latent;
  for (int32_t row = 0; row < problem.rows(); ++row) {
    if (problem.row_pos(row) == c.seqs[problem.row_seq(row)].len - 1) continue;
    for (int64_t i = row * width; i < (row + 1) * width; ++i) ASSERT_EQ(problem.out()[i], before[i]) << "row " << row;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, MlaAttention, ::testing::ValuesIn(testing::mla_cases()),
                         [](const auto& info) { return info.param.name; });

// More partial results than a wave holds: the bits of rows computed one by one.
TEST(MlaAttentionWaves, FewRowsOfLongSequences) {
  const MlaCase c = {
      .name = "", .heads = 64, .shape = {512, 16, 4, 4}, .seqs = {{1, 5000}, {1, 6100}, {1, 7000}, {1, 4900}, {1, 600}}};
  MlaProblem problem(c);
  attend(c, problem.params(), 4);
  const std::vector<float> waves = problem.out();
  attend(c, problem.params(), 1);
  EXPECT_EQ(problem.out(), waves);
}

// A list of every token is dense bit for bit.
TEST(MlaAttentionSelection, EveryUnitIsDense) {
  const MlaCase dense = {.name = "", .heads = 5, .shape = {64, 16, 4, 4}, .seqs = {{30, 700}}};
  MlaCase list = dense;
  list.select = true;
  list.keep = 1;
  MlaProblem a(dense), b(list);
  b.params().q = a.params().q;
  b.params().kv = a.params().kv;
  attend(dense, a.params(), 2);
  attend(list, b.params(), 2);
  EXPECT_EQ(a.out(), b.out());
  EXPECT_EQ(a.lse(), b.lse());
}

TEST(MlaAttentionPrepare, RefusesWhatItCannotDo) {
  cpu::MlaAttention attention;
  OpsLimits limits;
  limits.mla = {520, 64, 128, 128};
  EXPECT_NE(attention.prepare(limits, 1).message().find("kv_lora_rank 520"), std::string::npos);
  limits.mla = {512, 63, 128, 128};
  EXPECT_NE(attention.prepare(limits, 1).message().find("qk_rope_head_dim 63"), std::string::npos);
}

}  // namespace
}  // namespace fovea
