#include "kernels/cpu/attention/prefill_attention.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cmath>

#include "base/count_allocations_test_util.h"
#include "kernels/cpu/attention/prefill_test_cases.h"

namespace fovea {
namespace {

using testing::AttentionCase;
using testing::AttentionProblem;

const cpu::PrefillEngine& f32() { return cpu::choose_prefill_engine(Numerics::f32); }

class PrefillAttention : public ::testing::TestWithParam<AttentionCase> {};

TEST_P(PrefillAttention, EqualsTheReferenceOnEveryTarget) {
  AttentionProblem problem(GetParam());
  ref::paged_attention(problem.params());
  const std::vector<float> out = problem.out(), lse = problem.lse();
  ThreadPool pool(1);
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    std::fill(problem.out().begin(), problem.out().end(), NAN);
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().DeInit();
    testing::run(problem, pool, f32());
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().DeInit();
    testing::expect_near(problem, out, lse);
  }
}

TEST_P(PrefillAttention, LaterRowsKeysAreNotMultiplied) { testing::expect_no_later_keys(GetParam(), f32()); }

TEST_P(PrefillAttention, RowsDoNotDependOnTheirNeighbours) { testing::expect_rows_alone(GetParam(), f32()); }

TEST_P(PrefillAttention, HeadRangesEqualTheWholeCall) { testing::expect_head_ranges(GetParam(), f32()); }

INSTANTIATE_TEST_SUITE_P(Cases, PrefillAttention, ::testing::ValuesIn(testing::prefill_cases()),
                         [](const auto& info) { return info.param.name; });

TEST(PrefillAttentionNarrow, RowsIn16BitsAreThoseOfFloat32Rounded) { testing::expect_narrow_rows(f32()); }

TEST(PrefillAttentionGate, KeysAreReadWhenTheyAreThere) { testing::expect_gated(f32()); }

// A list of every unit reads what dense reads, in the same order.
TEST(PrefillAttentionSelection, EveryUnitIsDenseBitForBit) {
  const AttentionCase dense{.name = "dense", .seqs = {{40, 300}}};
  AttentionCase list = dense;
  list.select = true;
  list.keep = 1;
  list.rows_per_list = 40;
  AttentionProblem a(dense), b(list);
  b.q() = a.q();
  b.params().kv = a.params().kv;
  ThreadPool pool(1);
  testing::run(a, pool, f32());
  testing::run(b, pool, f32());
  EXPECT_TRUE(testing::same_bits(a.out().data(), b.out().data(), a.out().size()));
}

TEST(PrefillAttentionScales, MultiplyScoresAndValues) {
  AttentionProblem problem({.name = "scaled", .seqs = {{20, 150}}}), want({.name = "scaled", .seqs = {{20, 150}}});
  const float k_scale[] = {2.0f, 0.5f}, v_scale[] = {3.0f, 0.25f};
  for (AttentionProblem* p : {&problem, &want}) {
    p->params().kv.k_scale = k_scale;
    p->params().kv.v_scale = v_scale;
  }
  ThreadPool pool(1);
  testing::run(problem, pool, f32());
  ref::paged_attention(want.params());
  for (float& x : want.out()) x /= 3;  // the tolerance is for values of about 1
  for (float& x : problem.out()) x /= 3;
  testing::expect_near(problem, want.out(), want.lse());
}

// With 8 threads, of 4 query heads a KV head: turns are full, and what lays out keys for few rows only is not cut smaller than that.
TEST(PrefillPlan, CutsRowsSoThatThreadsEndTogether) {
  constexpr cpu::JobLanes kLanes{.most = 256, .panel = 32, .key_tile = 24};
  constexpr int32_t kThreads = 8;
  struct Cut {
    int32_t rows, kv_heads, tasks;
  };
  for (const Cut& c : {Cut{512, 1, 16}, Cut{528, 1, 22}, Cut{512, 2, 32}, Cut{512, 8, 64}, Cut{2048, 1, 32}, Cut{40, 1, 5}}) {
    SCOPED_TRACE(std::to_string(c.rows) + " rows, heads: " + std::to_string(c.kv_heads));
    const int32_t q_indptr[] = {0, c.rows}, seq_len = 16384;
    AttentionParams p{.num_heads = 4 * c.kv_heads, .num_seqs = 1, .q_indptr = q_indptr, .seq_len = &seq_len};
    p.kv.kv_heads = c.kv_heads;
    std::vector<cpu::RowTile> tiles(static_cast<size_t>(c.rows));
    const cpu::PrefillPlan plan = cpu::plan_prefill(p, kLanes, kThreads, tiles.data());
    EXPECT_EQ(plan.tasks, c.tasks);
    int32_t rows = 0;
    for (int32_t i = 0; i < plan.tiles; ++i) rows += tiles[static_cast<size_t>(i)].rows;
    EXPECT_EQ(rows, c.rows);
  }
}

TEST(PrefillAttentionMemory, RunAllocatesNothing) {
  AttentionProblem problem({.name = "tiles", .heads = 8, .seqs = {{100, 300}, {9, 20}}});
  ThreadPool pool(2);
  cpu::PrefillAttention attention;
  ASSERT_TRUE(testing::prepare(attention, problem, 2, f32()).ok());
  const int64_t before = testing::heap_allocations();
  attention.run(problem.params(), pool);
  EXPECT_EQ(testing::heap_allocations(), before);
}

TEST(PrefillAttentionLimits, NamesTheFieldAndTheValue) {
  cpu::PrefillAttention attention;
  OpsLimits limits;
  limits.head_dim = 72;
  const Status status = attention.prepare(limits, 1, Numerics::f32);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("head_dim is 72"), std::string::npos);
}

}  // namespace
}  // namespace fovea
