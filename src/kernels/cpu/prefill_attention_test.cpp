#include "kernels/cpu/prefill_attention.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>

#include "kernels/attention_cases.h"
#include "kernels/ref/attention.h"

namespace {
std::atomic<int64_t> g_allocations{0};  // of the whole test: what run() must not raise
}  // namespace

#define FOVEA_NOINLINE __attribute__((noinline))  // inlined, they look mismatched to the compiler
FOVEA_NOINLINE void* operator new(size_t n) {
  g_allocations.fetch_add(1);
  if (void* p = std::malloc(n)) return p;
  throw std::bad_alloc();
}
FOVEA_NOINLINE void operator delete(void* p) noexcept { std::free(p); }
FOVEA_NOINLINE void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace fovea {
namespace {

using testing::AttentionCase;
using testing::AttentionProblem;

constexpr float kTolerance = 2e-5f;  // float32 sums of up to some thousand terms against float64

// What the shared table leaves out: more rows than a tile has lanes, on both sides of key tiles; groups
// larger than a tile.
std::vector<AttentionCase> prefill_cases() {
  std::vector<AttentionCase> cases = testing::attention_cases();
  const auto add = [&](AttentionCase c) { cases.push_back(std::move(c)); };
  add({.name = "tiles", .heads = 8, .kv_heads = 2, .seqs = {{130, 259}, {57, 57}}});
  add({.name = "tiles_d128",
       .heads = 3,
       .kv_heads = 1,
       .head_dim = 128,
       .seqs = {{140, 385}},
       .dtype = DType::f32});
  add({.name = "tiles_masks",
       .heads = 4,
       .kv_heads = 2,
       .seqs = {{111, 300}},
       .soft_cap = 3.0f,
       .window = 140,
       .alibi = true});
  add({.name = "group_130", .heads = 130, .kv_heads = 1, .seqs = {{3, 140}}});
  add({.name = "xattention",
       .seqs = {{256, 384}},
       .select = true,
       .groups = HeadGroups::per_query_head,
       .tokens_per_unit = 128,
       .rows_per_list = 128,
       .keep = 0.6});
  add({.name = "tiles_list",
       .heads = 8,
       .seqs = {{70, 700}},
       .select = true,
       .rows_per_list = 50,
       .keep = 0.5});
  return cases;
}

Status prepare(cpu::PrefillAttention& attention, const AttentionProblem& problem, int threads) {
  OpsLimits limits;
  limits.max_rows = std::max(1, problem.rows());
  limits.head_dim = problem.shape().head_dim;
  return attention.prepare(limits, threads, Numerics::f32);
}

void run(AttentionProblem& problem, ThreadPool& pool) {
  cpu::PrefillAttention attention;
  ASSERT_TRUE(prepare(attention, problem, pool.size()).ok());
  attention.run(problem.params(), pool);
}

void expect_near(const AttentionProblem& problem, const std::vector<float>& out,
                 const std::vector<float>& lse, const std::vector<float>& want_out,
                 const std::vector<float>& want_lse) {
  const int64_t d = problem.shape().head_dim;
  for (size_t i = 0; i < out.size(); ++i) {
    ASSERT_NEAR(out[i], want_out[i], kTolerance) << "(row, head) " << i / d << " dim " << i % d;
  }
  for (size_t i = 0; i < lse.size(); ++i) {
    if (std::isinf(want_lse[i])) {
      ASSERT_EQ(lse[i], want_lse[i]) << "(row, head) " << i;
    } else {
      ASSERT_NEAR(lse[i], want_lse[i], kTolerance * std::max(1.0f, std::abs(want_lse[i])))
          << "(row, head) " << i;
    }
  }
}

bool same_bits(const float* a, const float* b, size_t n) { return std::memcmp(a, b, n * sizeof(float)) == 0; }

class PrefillAttention : public ::testing::TestWithParam<AttentionCase> {};

TEST_P(PrefillAttention, EqualsTheReferenceOnEveryTarget) {
  AttentionProblem want(GetParam()), problem(GetParam());
  ref::paged_attention(want.params());
  ThreadPool pool(1);
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    std::fill(problem.out().begin(), problem.out().end(), NAN);
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().DeInit();
    run(problem, pool);
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().DeInit();
    expect_near(problem, problem.out(), problem.lse(), want.out(), want.lse());
  }
}

// A key after the query, though another row of its tile reads it, changes no bit, were it NaN.
TEST_P(PrefillAttention, LaterRowsKeysAreNotMultiplied) {
  AttentionProblem problem(GetParam());
  ThreadPool pool(2);
  run(problem, pool);
  const std::vector<float> before = problem.out();
  const AttentionCase& c = GetParam();
  const int64_t width = static_cast<int64_t>(c.heads) * c.head_dim;
  for (int32_t last = 1; last <= 2; ++last) {  // first the last row's key, then the last two rows'
    for (int32_t s = 0; s < static_cast<int32_t>(c.seqs.size()); ++s) {
      if (c.seqs[s].rows >= last)
        problem.write_token(s, c.seqs[s].len - last, NAN, last == 1 ? NAN : INFINITY);
    }
    run(problem, pool);
    for (int32_t row = 0; row < problem.rows(); ++row) {
      if (problem.row_pos(row) >= c.seqs[problem.row_seq(row)].len - last) continue;
      ASSERT_TRUE(same_bits(&problem.out()[row * width], &before[row * width], width)) << "row " << row;
    }
  }
}

// The rows [first, end) of a problem as a call of their own.
struct Chunk {
  Chunk(AttentionProblem& problem, int32_t first, int32_t end) : params(problem.params()) {
    const AttentionCase& c = problem.shape();
    const int64_t from = static_cast<int64_t>(first) * c.heads;
    params.q += from * c.head_dim;
    params.out += from * c.head_dim;
    params.lse += from;
    for (int32_t s = 0, row = 0; s < params.num_seqs; row += c.seqs[s++].rows) {
      const int32_t begin = std::max(first, row), stop = std::min(end, row + c.seqs[s].rows);
      indptr.push_back(indptr.back() + std::max(0, stop - begin));
      len.push_back(stop > begin ? c.seqs[s].len - (row + c.seqs[s].rows - stop) : c.seqs[s].len);
    }
    params.q_indptr = indptr.data();
    params.seq_len = len.data();
    if (params.selection != nullptr && params.selection->kind != Selection::Kind::all)
      cut_selection(first, end);
  }
  Chunk(const Chunk&) = delete;

  void cut_selection(int32_t first, int32_t end) {
    const Selection& whole = *params.selection;
    selection = whole;
    int32_t skip = first;
    if (whole.row_indptr != nullptr) {
      skip = 0;
      while (whole.row_indptr[skip + 1] <= first) ++skip;
      for (int32_t r = skip; r <= whole.rows; ++r) {
        selection_indptr.push_back(std::clamp(whole.row_indptr[r], first, end) - first);
      }
      selection.row_indptr = selection_indptr.data();
    }
    selection.rows -= skip;
    const int64_t lists = static_cast<int64_t>(skip) * whole.groups;
    if (whole.units) selection.units += lists * whole.capacity;
    if (whole.counts) selection.counts += lists;
    if (whole.begins) selection.begins += lists;
    if (whole.ends) selection.ends += lists;
    params.selection = &selection;
  }

  AttentionParams params;
  Selection selection;
  std::vector<int32_t> indptr{0}, len, selection_indptr;
};

// Any cut of the rows and any number of threads gives the same bits.
TEST_P(PrefillAttention, RowsDoNotDependOnTheirNeighbours) {
  AttentionProblem problem(GetParam());
  ThreadPool one(1), two(2);
  run(problem, one);
  const std::vector<float> out = problem.out(), lse = problem.lse();
  cpu::PrefillAttention attention;
  ASSERT_TRUE(prepare(attention, problem, 2).ok());
  const int32_t sizes[] = {1, 2, 5, 17, 64};
  for (int32_t start : {0, 3}) {
    std::fill(problem.out().begin(), problem.out().end(), NAN);
    for (int32_t first = 0, i = start; first < problem.rows(); ++i) {
      const int32_t end = std::min(problem.rows(), first + sizes[i % 5]);
      Chunk chunk(problem, first, end);
      attention.run(chunk.params, i % 2 == 0 ? one : two);
      first = end;
    }
    ASSERT_TRUE(same_bits(problem.out().data(), out.data(), out.size()));
    ASSERT_TRUE(same_bits(problem.lse().data(), lse.data(), lse.size()));
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, PrefillAttention, ::testing::ValuesIn(prefill_cases()),
                         [](const auto& info) { return info.param.name; });

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
  run(a, pool);
  run(b, pool);
  EXPECT_TRUE(same_bits(a.out().data(), b.out().data(), a.out().size()));
}

TEST(PrefillAttentionScales, MultiplyScoresAndValues) {
  AttentionProblem problem({.name = "scaled", .seqs = {{20, 150}}}),
      want({.name = "scaled", .seqs = {{20, 150}}});
  const float k_scale[] = {2.0f, 0.5f}, v_scale[] = {3.0f, 0.25f};
  for (AttentionProblem* p : {&problem, &want}) {
    p->params().kv.k_scale = k_scale;
    p->params().kv.v_scale = v_scale;
  }
  ThreadPool pool(1);
  run(problem, pool);
  ref::paged_attention(want.params());
  for (float& x : want.out()) x /= 3;  // the tolerance is for values of about 1
  for (float& x : problem.out()) x /= 3;
  expect_near(problem, problem.out(), problem.lse(), want.out(), want.lse());
}

TEST(PrefillAttentionMemory, RunAllocatesNothing) {
  AttentionProblem problem({.name = "tiles", .heads = 8, .seqs = {{100, 300}, {9, 20}}});
  ThreadPool pool(2);
  cpu::PrefillAttention attention;
  ASSERT_TRUE(prepare(attention, problem, 2).ok());
  const int64_t before = g_allocations.load();
  attention.run(problem.params(), pool);
  EXPECT_EQ(g_allocations.load(), before);
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
