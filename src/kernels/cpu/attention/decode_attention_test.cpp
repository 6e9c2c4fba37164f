#include "kernels/cpu/attention/decode_attention.h"

#include "kernels/cpu/simd_targets.h"

#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <cmath>
#include <numbers>
#include <string>

#include "kernels/attention_cases.h"
#include "kernels/cpu/attention/decode_dot_emulated.h"
#include "kernels/cpu/cpu_features.h"
#include "kernels/ref/attention.h"

namespace fovea {
namespace {

using testing::AttentionCase;
using testing::AttentionProblem;
using testing::decode_limits;

// Against float64: values are N(0, 1) and weights sum to 1, so absolute; float32 sums of up to 5,000 terms.
constexpr float kTolerance = 2e-5f;
// By dot products q and the weights are rounded to bf16, each by up to 2^-9 of itself: a few of these add up.
constexpr float kBf16Tolerance = 2e-2f;
// Where q is exact in bf16 the weights alone are rounded, and their errors cancel in part. An lse counts rounded weights.
constexpr float kWeightTolerance = 1.0f / 256;

struct Tolerance {
  float out = kTolerance, lse = kTolerance;
};

const cpu::DecodeEngine& exact() { return cpu::choose_decode_engine(Numerics::f32); }

// That of float32, and those of dot products that the CPU can run.
std::vector<const cpu::DecodeEngine*> engines() {
  static constexpr cpu::DecodeEngine kDot{"dot", &cpu::attend_task_dot};
  std::vector<const cpu::DecodeEngine*> list = {&exact()};
  if (cpu::emulated_decode_dot() != nullptr) list.push_back(cpu::emulated_decode_dot());
  if (cpu::cpu_features().avx512_bf16) list.push_back(&kDot);
  return list;
}

bool rounds(const cpu::DecodeEngine* engine, const AttentionCase& c) { return engine != &exact() && c.dtype == DType::bf16; }

// Makes q such that what is rounded, q * scale * log2(e) or q * scale / cap, is exact in bf16.
void round_queries(AttentionProblem& problem) {
  const AttentionParams& p = problem.params();
  const float scale = p.scale * (p.soft_cap > 0 ? 1.0f / p.soft_cap : std::numbers::log2e_v<float>);
  for (float& q : problem.q()) q = bf16_to_f32(f32_to_bf16(q * scale)) / scale;
}

// One pool of each size for all tests: starting threads would be most of their time.
ThreadPool& pool_of(int threads) {
  static ThreadPool one(1), two(2), three(3);
  return threads == 1 ? one : threads == 2 ? two : three;
}

void decode(const AttentionCase& c, const AttentionParams& p, int threads, const cpu::DecodeEngine& engine = exact()) {
  cpu::DecodeAttention attention;
  ASSERT_TRUE(attention.prepare(decode_limits(c), threads, engine).ok());
  attention.run(p, pool_of(threads));
}

void expect_close(const AttentionProblem& problem, const std::vector<float>& want_out, const std::vector<float>& want_lse,
                  const std::vector<float>& out, const std::vector<float>& lse, const Tolerance& tolerance = {}) {
  const AttentionCase& c = problem.shape();
  for (size_t i = 0; i < out.size(); ++i) {
    ASSERT_NEAR(out[i], want_out[i], tolerance.out)
        << "row " << i / c.head_dim / c.heads << " head " << i / c.head_dim % c.heads << " dim " << i % c.head_dim;
  }
  for (size_t i = 0; i < lse.size(); ++i) {
    if (std::isinf(want_lse[i])) {
      ASSERT_EQ(lse[i], want_lse[i]) << "row " << i / c.heads << " head " << i % c.heads;
    } else {
      ASSERT_NEAR(lse[i], want_lse[i], tolerance.lse) << "row " << i / c.heads << " head " << i % c.heads;
    }
  }
}

class DecodeAttention : public ::testing::TestWithParam<AttentionCase> {
 protected:
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

TEST_P(DecodeAttention, EveryTargetEqualsTheReference) {
  AttentionProblem problem(GetParam());
  ref::paged_attention(problem.params());
  const std::vector<float> want_out = problem.out(), want_lse = problem.lse();
  for (int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    SCOPED_TRACE(hwy::TargetName(target));
    std::fill(problem.out().begin(), problem.out().end(), NAN);
    std::fill(problem.lse().begin(), problem.lse().end(), NAN);
    decode(GetParam(), problem.params(), 1);
    expect_close(problem, want_out, want_lse, problem.out(), problem.lse());
    hwy::SetSupportedTargetsForTest(0);
  }
}

TEST_P(DecodeAttention, DotProductsEqualTheReference) {
  AttentionProblem problem(GetParam());
  for (const bool exact_inputs : {false, true}) {
    if (exact_inputs) round_queries(problem);
    ref::paged_attention(problem.params());
    const std::vector<float> want_out = problem.out(), want_lse = problem.lse();
    for (const cpu::DecodeEngine* engine : engines()) {
      if (engine == &exact()) continue;
      SCOPED_TRACE(engine->name);
      std::fill(problem.out().begin(), problem.out().end(), NAN);
      std::fill(problem.lse().begin(), problem.lse().end(), NAN);
      decode(GetParam(), problem.params(), 1, *engine);
      const float most = rounds(engine, GetParam()) ? exact_inputs ? kWeightTolerance : kBf16Tolerance : kTolerance;
      expect_close(problem, want_out, want_lse, problem.out(), problem.lse(), {most, most});
    }
  }
}

// The bits of a result depend neither on the threads nor on the rows beside it.
void expect_rows_alone(const AttentionCase& c, const cpu::DecodeEngine& engine) {
  SCOPED_TRACE(engine.name);
  AttentionProblem problem(c);
  decode(c, problem.params(), 1, engine);
  const std::vector<float> out = problem.out(), lse = problem.lse();
  for (int threads : {2, 3}) {
    std::fill(problem.out().begin(), problem.out().end(), NAN);
    decode(c, problem.params(), threads, engine);
    ASSERT_EQ(problem.out(), out) << threads << " threads";
    ASSERT_EQ(problem.lse(), lse) << threads << " threads";
  }
  const int64_t width = static_cast<int64_t>(c.heads) * c.head_dim;
  for (int32_t row = 0; row < problem.rows(); ++row) {
    if (problem.row_pos(row) < 0) continue;  // it pads
    AttentionParams one = problem.params();
    Selection selection;
    std::vector<float> one_out(width, NAN), one_lse(c.heads, NAN);
    const int32_t indptr[] = {0, 1}, len = static_cast<int32_t>(problem.row_pos(row) + 1);
    one.num_seqs = 1;
    one.q_indptr = indptr;
    one.seq_len = &len;
    one.q = problem.q().data() + row * width;
    one.out = one_out.data();
    one.lse = one_lse.data();
    one.kv.table.slots += problem.row_seq(row) * one.kv.table.seq_stride;
    if (one.selection != nullptr) {
      selection = *one.selection;
      const int64_t lists = static_cast<int64_t>(problem.row_list(row)) * selection.groups;
      if (selection.units) selection.units += lists * selection.capacity, selection.counts += lists;
      if (selection.begins) selection.begins += lists, selection.ends += lists;
      selection.rows = 1;
      selection.row_indptr = nullptr;
      one.selection = &selection;
    }
    decode(c, one, 1, engine);
    for (int64_t i = 0; i < width; ++i) ASSERT_EQ(one_out[i], out[row * width + i]) << "row " << row;
    for (int32_t h = 0; h < c.heads; ++h) ASSERT_EQ(one_lse[h], lse[row * c.heads + h]) << "row " << row;
  }
}

TEST_P(DecodeAttention, ThreadsAndOtherRowsChangeNoBit) {
  for (const cpu::DecodeEngine* engine : engines()) expect_rows_alone(GetParam(), *engine);
}

// A range of KV heads as a call of its own gives the whole call's bits.
void expect_head_ranges(const AttentionCase& c, const cpu::DecodeEngine& engine) {
  SCOPED_TRACE(engine.name);
  AttentionProblem problem(c);
  decode(c, problem.params(), 2, engine);
  const std::vector<float> out = problem.out(), lse = problem.lse();
  std::fill(problem.out().begin(), problem.out().end(), NAN);
  std::fill(problem.lse().begin(), problem.lse().end(), NAN);
  for (int32_t first = 0; first < c.kv_heads; ++first) {
    testing::HeadRange range(problem.params(), first, 1);
    decode(c, range.params, 2, engine);
  }
  ASSERT_EQ(problem.out(), out);
  ASSERT_EQ(problem.lse(), lse);
}

TEST_P(DecodeAttention, HeadRangesEqualTheWholeCall) {
  for (const cpu::DecodeEngine* engine : engines()) expect_head_ranges(GetParam(), *engine);
}

TEST(DecodeAttentionNarrow, RowsIn16BitsAreThoseOfFloat32Rounded) {
  for (const AttentionCase& c : testing::narrow_decode_cases()) {
    for (const DType dtype : {DType::bf16, DType::f16}) {
      AttentionProblem problem(c);
      testing::NarrowActivations narrow(problem, dtype);
      for (const cpu::DecodeEngine* engine : engines()) {
        decode(c, problem.params(), 2, *engine);
        decode(c, narrow.params(), 2, *engine);
        EXPECT_EQ(narrow.out(), narrow.rounded(problem.out())) << c.name << " " << dtype_name(dtype) << " " << engine->name;
      }
    }
  }
}

// Each partition is attention over a range of keys, and all together are attention over all.
TEST(DecodeAttentionPartitions, AreAttentionOverTheirKeysAndMergeToTheWhole) {
  for (const AttentionCase& c : testing::partition_cases()) {
    for (const int32_t size : {16, 128, 512}) {
      SCOPED_TRACE(c.name + ", partitions of " + std::to_string(size));
      AttentionProblem problem(c);
      ref::paged_attention(problem.params());
      const std::vector<float> want_out = problem.out(), want_lse = problem.lse();
      testing::PartitionMemory want(problem, size, 2), got(problem, size, 2);
      for (auto* m : {&want, &got}) {
        m->params.exp_sums = m->exp_sums.data(), m->params.max_logits = m->max_logits.data(), m->params.tmp_out = m->tmp_out.data();
      }
      ref::paged_partitions(want.params);
      cpu::DecodeAttention attention;
      ASSERT_TRUE(attention.prepare(decode_limits(c), 2, Numerics::f32).ok());
      attention.run(got.params, pool_of(2));
      for (size_t i = 0; i < want.exp_sums.size(); ++i) {
        if (want.exp_sums[i] == 0) {
          ASSERT_EQ(got.exp_sums[i], 0);
          ASSERT_EQ(got.max_logits[i], -INFINITY);
          continue;
        }
        // A score of 500, as ALiBi makes of a distance, has a rounding of its own.
        const float tolerance = kTolerance * std::max(1.0f, std::abs(want.max_logits[i]));
        ASSERT_NEAR(got.max_logits[i] + std::log(got.exp_sums[i]), want.max_logits[i], tolerance);
        for (int32_t e = 0; e < c.head_dim; ++e) {
          ASSERT_NEAR(got.tmp_out[i * c.head_dim + e], want.tmp_out[i * c.head_dim + e], tolerance);
        }
      }
      MergePartitionsParams merge{
          got.exp_sums.data(), got.max_logits.data(), got.tmp_out.data(), got.params.max_partitions, problem.rows(), c.heads,
          c.head_dim,          problem.out().data(),  DType::f32,         problem.lse().data()};
      for (auto run : {+[](const MergePartitionsParams& p) { ref::merge_partitions(p); },
                       +[](const MergePartitionsParams& p) { cpu::merge_partitions(p, pool_of(3)); }}) {
        std::fill(problem.out().begin(), problem.out().end(), NAN);
        run(merge);
        expect_close(problem, want_out, want_lse, problem.out(), problem.lse());
      }
    }
  }
}

// A key after the query is not multiplied, though a later row of the same call reads it.
void expect_no_later_keys(const AttentionCase& c, const cpu::DecodeEngine& engine) {
  SCOPED_TRACE(engine.name);
  AttentionProblem problem(c);
  decode(c, problem.params(), 1, engine);
  const std::vector<float> before = problem.out();
  for (int32_t s = 0; s < static_cast<int32_t>(c.seqs.size()); ++s) {
    if (c.seqs[s].rows > 0 && c.seqs[s].len > 0) problem.write_token(s, c.seqs[s].len - 1, NAN, NAN);
  }
  decode(c, problem.params(), 1, engine);
  const int64_t width = static_cast<int64_t>(c.heads) * c.head_dim;
  for (int32_t row = 0; row < problem.rows(); ++row) {
    if (problem.row_pos(row) == c.seqs[problem.row_seq(row)].len - 1) continue;
    for (int64_t i = row * width; i < (row + 1) * width; ++i) ASSERT_EQ(problem.out()[i], before[i]) << "row " << row;
  }
}

TEST_P(DecodeAttention, LaterRowsKeysAreNotMultiplied) {
  for (const cpu::DecodeEngine* engine : engines()) expect_no_later_keys(GetParam(), *engine);
}

INSTANTIATE_TEST_SUITE_P(Padded, DecodeAttention, ::testing::ValuesIn(testing::padded_attention_cases()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Cases, DecodeAttention, ::testing::ValuesIn(testing::attention_cases()),
                         [](const auto& info) { return info.param.name; });

// Lengths on both sides of a partition's edge, and of several.
TEST(DecodeAttentionLengths, PartitionEdges) {
  for (int32_t edge : {cpu::kDecodeChunk, static_cast<int>(cpu::kDecodePartition), 3 * static_cast<int>(cpu::kDecodePartition)}) {
    AttentionProblem problem({.name = "edge", .heads = 2, .kv_heads = 1, .seqs = {{1, edge - 1}, {1, edge}, {1, edge + 1}}});
    ref::paged_attention(problem.params());
    const std::vector<float> out = problem.out(), lse = problem.lse();
    decode(problem.shape(), problem.params(), 2);
    expect_close(problem, out, lse, problem.out(), problem.lse());
  }
}

// Beyond kDecodeMaxPartitions * 512 keys the partitions grow; their number does not.
TEST(DecodeAttentionLengths, PartitionsAreBoundedAndCoverEverything) {
  for (int64_t n : {0, 1, 1023, 1024, 1025, 65535, 65536, 65537, 131072, 1000000}) {
    cpu::KeySet keys;
    keys.end = n;
    EXPECT_LE(keys.partitions(), cpu::kDecodeMaxPartitions) << n;
    EXPECT_GE(keys.partitions() * keys.partition(), n);
    EXPECT_LT((keys.partitions() - 1) * keys.partition(), std::max<int64_t>(n, 1));
  }
}

// A list of every unit reads what dense reads.
TEST(DecodeAttentionSelection, ListOfEverythingEqualsDense) {
  AttentionCase c = {.name = "all", .seqs = {{1, 5}, {2, 700}, {1, 2500}}};
  AttentionProblem dense(c);
  decode(c, dense.params(), 2);
  for (int32_t tokens : {1, 16, 48, 128}) {
    c.select = true;
    c.keep = 1;
    c.tokens_per_unit = tokens;
    AttentionProblem listed(c);
    listed.params().q = dense.params().q;  // the draws differ once a Selection is drawn
    listed.params().kv = dense.params().kv;
    decode(c, listed.params(), 2);
    expect_close(listed, dense.out(), dense.lse(), listed.out(), listed.lse());
  }
}

// More row groups, and more partials, than one wave holds: same results as in waves of one.
TEST(DecodeAttentionWaves, ManyRowsEqualTheSameRowsAlone) {
  AttentionCase c = {.name = "waves", .heads = 2, .kv_heads = 2, .seqs = {{300, 2300}}};
  AttentionProblem problem(c);
  ThreadPool& pool = pool_of(2);
  cpu::DecodeAttention large, small;
  OpsLimits limits = decode_limits(c);
  ASSERT_TRUE(large.prepare(limits, 2, Numerics::f32).ok());
  limits.max_decode_rows = 1;
  ASSERT_TRUE(small.prepare(limits, 2, Numerics::f32).ok());
  large.run(problem.params(), pool);
  const std::vector<float> out = problem.out();
  std::fill(problem.out().begin(), problem.out().end(), NAN);
  small.run(problem.params(), pool);
  EXPECT_EQ(problem.out(), out);
}

// Large scores: maxima grow by more than the slack in many chunks, and what was summed before is rescaled.
TEST(DecodeAttentionDot, GrowsWithLargeScores) {
  AttentionProblem problem({.name = "large", .heads = 8, .kv_heads = 2, .seqs = {{2, 700}, {1, 1300}}});
  problem.params().scale *= 12;
  round_queries(problem);
  ref::paged_attention(problem.params());
  const std::vector<float> out = problem.out(), lse = problem.lse();
  for (const cpu::DecodeEngine* engine : engines()) {
    SCOPED_TRACE(engine->name);
    decode(problem.shape(), problem.params(), 1, *engine);
    expect_close(problem, out, lse, problem.out(), problem.lse(), {kWeightTolerance, kWeightTolerance});
  }
}

// Weights are divided by the sum of what they were rounded to: keys of one value give that value, whatever their scores.
TEST(DecodeAttentionDot, KeysOfOneValueGiveThatValue) {
  AttentionProblem problem({.name = "one", .heads = 8, .kv_heads = 2, .seqs = {{1, 13}, {1, 700}}});
  for (int32_t s = 0; s < 2; ++s) {
    for (int32_t pos = 0; pos < problem.shape().seqs[s].len; ++pos)
      problem.write_token(s, pos, 0.01f * static_cast<float>(pos % 50), 0.75f);
  }
  for (const cpu::DecodeEngine* engine : engines()) {
    decode(problem.shape(), problem.params(), 1, *engine);
    for (const float x : problem.out()) ASSERT_NEAR(x, 0.75f, 2e-6f) << engine->name;
  }
}

// What fills the place after an odd last key is multiplied by 0, and must not be infinite then.
TEST(DecodeAttentionDot, AnInfiniteLastValueStaysInfinite) {
  AttentionProblem problem({.name = "infinite", .heads = 8, .kv_heads = 2, .seqs = {{1, 13}}});
  problem.write_token(0, 12, 0.5f, INFINITY);
  for (const cpu::DecodeEngine* engine : engines()) {
    decode(problem.shape(), problem.params(), 1, *engine);
    for (const float x : problem.out()) ASSERT_EQ(x, INFINITY) << engine->name;
  }
}

TEST(DecodeAttentionPrepare, RefusesWhatItCannotDo) {
  cpu::DecodeAttention attention;
  OpsLimits limits;
  limits.head_dim = 72;
  EXPECT_NE(attention.prepare(limits, 1, Numerics::f32).message().find("head_dim 72"), std::string::npos);
  limits.head_dim = 64;
  limits.num_heads = 6;
  limits.kv_heads = 4;
  EXPECT_NE(attention.prepare(limits, 1, Numerics::f32).message().find("num_heads 6"), std::string::npos);
}

}  // namespace
}  // namespace fovea
