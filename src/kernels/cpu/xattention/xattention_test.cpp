#include "kernels/cpu/xattention/xattention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cmath>
#include <cstring>

#include "base/count_allocations_test_util.h"
#include "kernels/cpu/attention/prefill_attention.h"
#include "kernels/cpu/xattention/unfused.h"
#include "kernels/cpu/xattention/xattention_amx_emulated.h"
#include "kernels/cpu/xattention/xattention_choice.h"
#include "kernels/cpu/xattention/xattention_lanes.h"
#include "kernels/ref/xattention.h"
#include "kernels/xattention_cases.h"
#include "kernels/xattention_unfused_cases.h"

namespace fovea {
namespace {

using cpu::XAttentionSelect;
using testing::kXChoiceCases;
using testing::XCase;
using testing::XChoiceCase;
using testing::XProblem;

OpsLimits limits_of(XProblem& problem, int32_t least_stride = 0) {
  const XAttentionParams& p = problem.params();
  OpsLimits limits;
  limits.max_rows = std::max(1, p.q_indptr[p.num_seqs]);
  for (int32_t s = 0; s < p.num_seqs; ++s) limits.max_len = std::max<int64_t>(limits.max_len, p.seq_len[s]);
  limits.num_heads = p.num_heads;
  limits.kv_heads = p.kv.kv_heads;
  limits.head_dim = p.kv.head_dim;
  limits.xattention_stride = least_stride ? least_stride : p.stride;
  return limits;
}

const cpu::XEngine& f32() { return cpu::choose_xattention_engine(Numerics::f32); }

// Those on bf16 tiles: the emulation where the CPU has AVX-512, the instructions where it has AMX.
std::vector<const cpu::XEngine*> amx_engines() {
  std::vector<const cpu::XEngine*> list;
  for (const cpu::XEngine* e : {cpu::emulated_amx_xattention(), &cpu::choose_xattention_engine(Numerics::bf16)}) {
    if (e != nullptr && e != &f32()) list.push_back(e);
  }
  return list;
}
std::vector<const cpu::XEngine*> engines() {
  std::vector<const cpu::XEngine*> list = amx_engines();
  list.push_back(&f32());
  return list;
}

void run(XProblem& problem, ThreadPool& pool, const cpu::XEngine& engine = f32()) {
  XAttentionSelect select;
  ASSERT_TRUE(select.prepare(limits_of(problem), pool.size(), engine).ok());
  problem.cut();
  select.run(problem.params(), pool);
}

struct Choice {
  std::vector<int32_t> units, counts;
  std::vector<float> sums;
  bool operator==(const Choice&) const = default;
};
Choice choice_of(const XProblem& problem) { return {problem.units(), problem.counts(), problem.sums()}; }

// P against the reference; the lists against the reference's rule on this very P.
void expect_right(XProblem& problem, const std::vector<float>& want, float tolerance) {
  const XAttentionParams& p = problem.params();
  for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(problem.sums()[i], want[i], tolerance) << "of " << p.capacity << ": " << i;
  for (int32_t t = 0; t < p.tiles; ++t) {
    const auto at = ref::place_of_tile(p, t);
    std::vector<std::vector<int32_t>> lists;
    for (int32_t h = 0; h < p.num_heads; ++h) {
      lists.push_back(ref::choose_blocks(problem.sums(t, h).data(), at.blocks, at.forced, p.threshold[h], p.top_k));
    }
    const int32_t group = p.num_heads / p.kv.kv_heads;
    for (int32_t g = 0; g < problem.groups(); ++g) {
      if (!p.group_vote) {
        ASSERT_EQ(problem.list(t, g), lists[g]) << "tile " << t << " head " << g;
        continue;
      }
      const auto units = ref::majority_blocks({lists.begin() + g * group, lists.begin() + (g + 1) * group}, at.blocks);
      ASSERT_EQ(problem.list(t, g), units) << "tile " << t << " KV head " << g;
    }
  }
}

TEST(XAttentionChoiceCpu, EqualsTheTable) {
  for (const XChoiceCase& c : kXChoiceCases) {
    std::vector<uint64_t> order(c.sums.size());
    std::vector<int32_t> units(c.sums.size());
    units.resize(cpu::choose_blocks(c.sums.data(), static_cast<int32_t>(c.sums.size()), {c.sink, c.diagonal_begin, c.diagonal_end},
                                    c.threshold, c.top_k, order.data(), units.data()));
    EXPECT_EQ(units, c.units) << c.name;
  }
}

class XAttentionCpu : public ::testing::TestWithParam<XCase> {};

TEST_P(XAttentionCpu, EqualsTheReferenceOnEveryTarget) {
  XProblem problem(GetParam());
  ref::xattention_select(problem.params());
  const std::vector<float> want = problem.sums();
  ThreadPool pool(1);
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    run(problem, pool);
    expect_right(problem, want, 2e-4f);
  }
  hwy::SetSupportedTargetsForTest(0);
}

// With queries that are exact in bf16 once they are scaled; keys of other types than bf16 are rounded.
TEST_P(XAttentionCpu, Bf16TilesEqualTheReference) {
  XProblem problem(GetParam());
  const float scale = cpu::xattention_scale(problem.params(), 0);
  for (float& q : problem.memory().q()) q = bf16_to_f32(f32_to_bf16(q * scale)) / scale;
  ref::xattention_select(problem.params());
  const std::vector<float> want = problem.sums();
  ThreadPool pool(1);
  for (const cpu::XEngine* engine : amx_engines()) {
    SCOPED_TRACE(engine->name);
    run(problem, pool, *engine);
    expect_right(problem, want, GetParam().shape.dtype == DType::bf16 ? 5e-4f : 5e-2f);
  }
}

TEST_P(XAttentionCpu, ThreadsChangeNothing) {
  XProblem problem(GetParam());
  ThreadPool one(1), three(3);
  for (const cpu::XEngine* engine : engines()) {
    SCOPED_TRACE(engine->name);
    run(problem, one, *engine);
    const Choice alone = choice_of(problem);
    run(problem, three, *engine);
    EXPECT_TRUE(choice_of(problem) == alone);
  }
}

// By the sums of a call, and by another count than that call's.
TEST_P(XAttentionCpu, TheChoiceAloneIsThatOfTheWhole) {
  XProblem problem(GetParam());
  ThreadPool pool(2);
  XAttentionSelect select;
  ASSERT_TRUE(select.prepare(limits_of(problem), 2, f32()).ok());
  problem.cut();
  for (const int32_t top_k : {0, 3}) {
    XAttentionParams p = problem.params();
    p.top_k = top_k;
    select.run(p, pool);
    const Choice whole = choice_of(problem);
    XAttentionChoiceParams choice{p};
    choice.q = nullptr, choice.kv.k = nullptr;
    for (const bool by_ref : {false, true}) {
      std::fill_n(p.units, whole.units.size(), -9), std::fill_n(p.counts, whole.counts.size(), -9);
      by_ref ? ref::xattention_choose(choice) : select.run(choice, pool);
      const Choice again = choice_of(problem);
      EXPECT_EQ(again.counts, whole.counts) << "top_k " << top_k;
      for (size_t list = 0; list < whole.counts.size(); ++list) {
        const auto *got = &again.units[list * p.capacity], *want = &whole.units[list * p.capacity];
        EXPECT_TRUE(std::equal(got, got + whole.counts[list], want)) << "list " << list;
      }
    }
  }
}

TEST_P(XAttentionCpu, PassesOfOneTileChooseTheSame) {
  XProblem problem(GetParam());
  ThreadPool pool(2);
  for (const cpu::XEngine* engine : engines()) {
    SCOPED_TRACE(engine->name);
    run(problem, pool, *engine);
    const Choice together = choice_of(problem);
    XAttentionSelect select;
    ASSERT_TRUE(select.prepare(limits_of(problem), 2, *engine, 1).ok());
    problem.cut();
    select.run(problem.params(), pool);
    EXPECT_TRUE(choice_of(problem) == together);
  }
}

// The keys of each sequence's rows, chunk by chunk at multiples of 128, as an engine would meet them.
void expect_chunks_choose_the_same(const XCase& c, const cpu::XEngine& engine) {
  XProblem problem(c);
  ThreadPool pool(2);
  run(problem, pool, engine);
  const Choice whole = choice_of(problem);
  XAttentionParams p = problem.params();
  XAttentionSelect select;
  ASSERT_TRUE(select.prepare(limits_of(problem), 2, engine).ok());
  problem.cut();
  for (int32_t t = 0; t < p.tiles;) {
    const int32_t seq = p.tile_seq[t];
    int32_t stop = t;  // tiles up to the next multiple of 128
    do {
      ++stop;
    } while (stop < p.tiles && p.tile_seq[stop] == seq && ref::place_of_tile(p, stop).begin % 128 != 0);
    XAttentionParams chunk = p;
    const int32_t rows = p.tile_indptr[stop] - p.tile_indptr[t];
    const auto len = static_cast<int32_t>(ref::place_of_tile(p, stop - 1).end);
    std::vector<int32_t> indptr = {0, rows}, seqs(stop - t, 0), tiles;
    for (int32_t i = t; i <= stop; ++i) tiles.push_back(p.tile_indptr[i] - p.tile_indptr[t]);
    chunk.q += int64_t{p.tile_indptr[t]} * p.num_heads * p.kv.head_dim;
    chunk.num_seqs = 1;
    chunk.q_indptr = indptr.data();
    chunk.seq_len = &len;
    chunk.kv.table.slots += seq * p.kv.table.seq_stride;
    chunk.tiles = stop - t;
    chunk.tile_seq = seqs.data();
    chunk.tile_indptr = tiles.data();
    chunk.units += int64_t{t} * problem.groups() * p.capacity;
    chunk.counts += int64_t{t} * problem.groups();
    chunk.sums += int64_t{t} * p.num_heads * p.capacity;
    select.run(chunk, pool);
    t = stop;
  }
  EXPECT_TRUE(choice_of(problem) == whole);
}

TEST_P(XAttentionCpu, ChunksOfWholeBlocksChooseTheSame) {
  if (!GetParam().causal) return;  // a later chunk's keys belong to every row
  for (const cpu::XEngine* engine : engines()) {
    SCOPED_TRACE(engine->name);
    expect_chunks_choose_the_same(GetParam(), *engine);
  }
}

INSTANTIATE_TEST_SUITE_P(All, XAttentionCpu, ::testing::ValuesIn(testing::xattention_cases()),
                         [](const auto& i) { return i.param.name; });

// The choice and the attention through it, in chunks of 128 and 384 tokens and in one: the same bits.
TEST(XAttentionSelect, ChunksAttendAlike) {
  XCase c{.shape = {.heads = 8, .kv_heads = 2, .seqs = {{700, 1000}}}, .threshold = 0.5f};
  XProblem problem(c);
  AttentionParams a = problem.memory().params();
  ThreadPool pool(2);
  XAttentionSelect select;
  cpu::PrefillAttention attention;
  ASSERT_TRUE(select.prepare(limits_of(problem), 2, Numerics::f32).ok());
  ASSERT_TRUE(attention.prepare(limits_of(problem), 2, Numerics::f32).ok());
  const auto attend = [&](int32_t first, int32_t end) {
    XAttentionParams p = problem.params();
    const int32_t indptr[] = {0, end - first}, len = 300 + end;
    const int64_t skip = int64_t{first} * p.num_heads;
    std::vector<int32_t> seq(end - first), at(end - first + 1);
    p.q += skip * p.kv.head_dim;
    p.q_indptr = indptr;
    p.seq_len = &len;
    p.tiles = xattention_tiles(indptr, &len, 1, p.block_size, seq.data(), at.data());
    p.tile_seq = seq.data();
    p.tile_indptr = at.data();
    select.run(p, pool);
    const Selection s{.kind = Selection::Kind::list,
                      .heads = HeadGroups::per_query_head,
                      .tokens_per_unit = p.block_size,
                      .rows = p.tiles,
                      .groups = p.num_heads,
                      .capacity = p.capacity,
                      .row_indptr = at.data(),
                      .units = p.units,
                      .counts = p.counts};
    AttentionParams chunk = a;
    chunk.q = p.q;
    chunk.out = static_cast<float*>(a.out) + skip * p.kv.head_dim;
    chunk.lse += skip;
    chunk.q_indptr = indptr;
    chunk.seq_len = &len;
    chunk.selection = &s;
    attention.run(chunk, pool);
  };
  attend(0, 700);
  const std::vector<float> whole = problem.memory().out();
  for (int32_t chunk : {128, 384}) {
    std::fill(problem.memory().out().begin(), problem.memory().out().end(), NAN);
    for (int32_t first = 0; first < 700;) {
      const int32_t end = std::min(700, (300 + first) / chunk * chunk + chunk - 300);
      attend(first, end);
      first = end;
    }
    EXPECT_EQ(std::memcmp(whole.data(), problem.memory().out().data(), whole.size() * sizeof(float)), 0) << chunk;
  }
}

TEST(XAttentionSelect, KeysThatNoRowMaySeeChangeNothing) {
  // attention_cases.h has poisoned what lies beyond every row; here what lies beyond the earlier rows is poisoned too.
  XCase c{.name = "later", .shape = {.seqs = {{300, 700}}}};
  XProblem problem(c);
  ThreadPool pool(1);
  run(problem, pool);
  const Choice before = choice_of(problem);
  problem.memory().write_token(0, 699, NAN, NAN);
  run(problem, pool);
  const XAttentionParams& p = problem.params();
  const int64_t kept = int64_t{p.tiles - 1} * p.num_heads;  // all tiles but the last, which sees the key
  EXPECT_TRUE(std::equal(before.counts.begin(), before.counts.begin() + kept, problem.counts().begin()));
  EXPECT_EQ(std::memcmp(before.sums.data(), problem.sums().data(), kept * p.capacity * sizeof(float)), 0);
  // The key's own pairs lie on later queries' antidiagonals: it is in no pair of this call, and adds nothing either.
  EXPECT_EQ(before.counts, problem.counts());
}

TEST(XAttentionSelect, AKeyThatIsNotANumberTakesEveryBlock) {
  XCase c{.name = "nan", .shape = {.seqs = {{256, 640}}}, .threshold = 0.2f};
  XProblem problem(c);
  problem.memory().write_token(0, 100, NAN, NAN);
  ThreadPool pool(1);
  run(problem, pool);
  for (int32_t t = 0; t < problem.params().tiles; ++t) {
    for (int32_t h = 0; h < problem.params().num_heads; ++h)
      EXPECT_EQ(static_cast<int32_t>(problem.list(t, h).size()), ref::place_of_tile(problem.params(), t).blocks);
  }
}

TEST(XAttentionSelect, ARunTakesNoMemoryAndScratchServesSmallerCalls) {
  XProblem large({.shape = {.heads = 8, .kv_heads = 2, .seqs = {{300, 800}, {100, 200}}}, .stride = 4, .group_vote = true});
  XProblem small({.name = "small", .shape = {.heads = 4, .kv_heads = 2, .seqs = {{60, 130}}}, .stride = 64});
  ThreadPool pool(2);
  XAttentionSelect select;
  ASSERT_TRUE(select.prepare(limits_of(large, 4), 2, Numerics::f32).ok());
  const int64_t before = testing::heap_allocations();
  select.run(large.params(), pool);
  select.run(small.params(), pool);
  EXPECT_EQ(testing::heap_allocations(), before);
  const Choice reused = choice_of(small);
  run(small, pool);
  EXPECT_TRUE(choice_of(small) == reused);
}

TEST(XAttentionSelect, PrepareRefusesByName) {
  OpsLimits limits;
  XAttentionSelect select;
  EXPECT_TRUE(select.prepare(limits, 1, Numerics::f32).ok()) << "never called: no scratch";
  for (int32_t stride : {2, 12, 128, -4}) {
    limits.xattention_stride = stride;
    EXPECT_THAT(select.prepare(limits, 1, Numerics::f32).message(),
                ::testing::HasSubstr("xattention_stride is " + std::to_string(stride)));
  }
  limits.xattention_stride = 16;
  limits.head_dim = 272;
  EXPECT_THAT(select.prepare(limits, 1, Numerics::f32).message(), ::testing::HasSubstr("head_dim is 272"));
}

class XAttentionUnfusedCpu : public ::testing::TestWithParam<testing::UnfusedCase> {};

TEST_P(XAttentionUnfusedCpu, EqualsTheReferenceOnEveryTarget) {
  ThreadPool pool(2);
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    testing::expect_unfused(
        GetParam(),
        [](testing::UnfusedProblem& p) {
          ref::flat_group_gemm_fuse_reshape(p.scores);
          ref::softmax_fuse_block_sum(p.sums);
        },
        [&](const FlatGroupGemmParams& p) { cpu::flat_group_gemm_fuse_reshape(p, pool); },
        [&](const SoftmaxBlockSumParams& p) { cpu::softmax_fuse_block_sum(p, pool); });
  }
  hwy::SetSupportedTargetsForTest(0);
}

INSTANTIATE_TEST_SUITE_P(All, XAttentionUnfusedCpu, ::testing::ValuesIn(testing::unfused_cases()),
                         [](const auto& i) { return i.param.name; });

}  // namespace
}  // namespace fovea
