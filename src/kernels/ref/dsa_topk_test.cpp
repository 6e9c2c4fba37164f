#include "kernels/ref/dsa_topk.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/dsa_cases.h"
#include "kernels/ref/dsa_index.h"

namespace fovea {
namespace {

using testing::DsaCase;
using testing::DsaLists;
using testing::DsaProblem;
using testing::IndexData;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<int32_t> topk(const std::vector<float>& scores, int32_t k) {
  std::vector<int32_t> out(k, -9);
  out.resize(ref::topk_positions(scores.data(), static_cast<int32_t>(scores.size()), k, out.data()));
  return out;
}

std::vector<int32_t> iota(int32_t n) {
  std::vector<int32_t> v(n);
  std::iota(v.begin(), v.end(), 0);
  return v;
}

TEST(RefIndexLogits, SignedWeightsMakeNegativeScoresAndMaskedIsMinusInfinity) {
  const std::vector<float> q = {1, 2, 3, 4, -1, 0, 1, 0};
  const float factor = ref::index_weight_factor(2, 4);
  const std::vector<float> weights = {0.5f * factor, -2 * factor};
  std::vector<float> keys = {1, 1, 1, 1, -1, -1, -1, -1, 0, 0, 2, 0, kNan, kNan, kNan, kNan};
  const int32_t seq = 0, len = 3, block = 0;
  IndexTopkParams p;
  p.rows = 1;
  p.heads = 2;
  p.q = q.data();
  p.weights = weights.data();
  p.row_seq = &seq;
  p.row_len = &len;
  p.max_len = 4;
  p.keys = {IndexPrecision::exact, keys.data(), nullptr, 4, 4, &block, 1};
  std::vector<float> logits(4);
  ref::index_logits(p, 0, 1, logits.data(), 4);
  EXPECT_FLOAT_EQ(logits[0], 1.7677670f);
  EXPECT_EQ(logits[1], 0.0f);
  EXPECT_FLOAT_EQ(logits[2], -0.3535534f);
  EXPECT_EQ(logits[3], -kInf);
}

TEST(RefTopk, TakesTheLargestAndPrintsPositionsAscending) {
  EXPECT_EQ(topk({1, 5, -2, 4, 0}, 2), (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(topk({-1, -5, -2}, 2), (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(topk({}, 2), (std::vector<int32_t>{}));
  EXPECT_EQ(topk({3}, 2), (std::vector<int32_t>{0}));
}

TEST(RefTopk, TiesGoToTheLowerPosition) {
  EXPECT_EQ(topk(std::vector<float>(4097, 0.25f), 2048), iota(2048));
  EXPECT_EQ(topk(std::vector<float>(16385, -1.0f), 2048), iota(2048));
  EXPECT_EQ(topk({0.0f, -0.0f, 0.0f}, 2), iota(2));
}

TEST(RefTopk, AHundredWinnersAmongZeros) {
  std::vector<float> scores(8320, 0.0f);
  std::vector<int32_t> want = iota(1948);
  for (int32_t i = 0; i < 100; ++i) scores[8219 - 50 * i] = 1.0f + static_cast<float>(i);
  for (int32_t i = 99; i >= 0; --i) want.push_back(8219 - 50 * i);
  EXPECT_EQ(topk(scores, 2048), want);
}

TEST(RefTopk, NanRanksBelowMinusInfinity) {
  EXPECT_EQ(topk({kNan, -kInf, kNan, 1}, 2), (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(topk({kNan, -kInf, kNan, 1}, 3), (std::vector<int32_t>{0, 1, 3}));
}

TEST(RefIndexTopk, EveryCaseIsAscendingCountedAndPaddedWithMinusOne) {
  for (const DsaCase& c : testing::dsa_cases()) {
    SCOPED_TRACE(c.name);
    const DsaProblem problem(c);
    const DsaLists lists = problem.run(ref::index_topk, IndexSpace::ragged);
    for (int32_t r = 0; r < problem.rows(); ++r) {
      const int32_t count = std::min(c.topk, problem.row_len()[r]);
      ASSERT_EQ(lists.counts[r], count);
      for (int32_t i = 0; i < c.topk; ++i) {
        const int32_t position = lists.positions[int64_t{r} * c.topk + i];
        const int32_t mapped = lists.mapped[int64_t{r} * c.topk + i];
        if (i >= count) {
          ASSERT_EQ(position, -1);
          ASSERT_EQ(mapped, -1);
          continue;
        }
        ASSERT_LT(position, problem.row_len()[r]);
        ASSERT_GT(position, i == 0 ? -1 : lists.positions[int64_t{r} * c.topk + i - 1]);
        ASSERT_EQ(mapped, problem.ragged_start()[r] + position);
      }
      if (c.data == IndexData::constant && count > 0) {
        ASSERT_EQ(lists.positions[int64_t{r} * c.topk + count - 1], count - 1);
      }
    }
  }
}

TEST(RefIndexTopk, ChunksOfTheLogitsChangeNothing) {
  for (const DsaCase& c : testing::dsa_cases()) {
    if (c.seqs[0].len > 1000) continue;
    SCOPED_TRACE(c.name);
    const DsaProblem problem(c);
    const DsaLists whole = problem.run(ref::index_topk, IndexSpace::slot, problem.rows());
    EXPECT_EQ(problem.run(ref::index_topk, IndexSpace::slot, 1), whole);
    EXPECT_EQ(problem.run(ref::index_topk, IndexSpace::slot, 7), whole);
    EXPECT_EQ(problem.run(ref::index_topk, IndexSpace::slot), whole);
  }
}

TEST(RefIndexTransform, AfterTheChoiceEqualsFusedInBothSpaces) {
  const DsaCase c{"", 4, 64, 16, IndexPrecision::bf16, {{3, 50}, {4, 130}}, 40};
  const DsaProblem problem(c);
  for (IndexSpace space : {IndexSpace::slot, IndexSpace::ragged}) {
    const DsaLists fused = problem.run(ref::index_topk, space);
    const DsaLists after = problem.run(ref::index_topk);
    const IndexTopkParams p = problem.params();
    std::vector<int32_t> counts;
    const std::vector<int32_t> mapped = problem.transformed(ref::index_transform, after, space, &counts);
    EXPECT_EQ(mapped, fused.mapped);
    EXPECT_EQ(counts, after.counts);
    // RAGGED and PAGED name the same tokens.
    for (int32_t r = 0; r < p.rows; ++r) {
      for (int32_t i = 0; i < counts[r]; ++i) {
        const int32_t position = after.positions[int64_t{r} * c.topk + i], at = mapped[int64_t{r} * c.topk + i];
        if (space == IndexSpace::ragged) {
          EXPECT_EQ(at - problem.ragged_start()[r], position);
        } else {
          const int32_t block = p.keys.block_table[p.row_seq[r] * p.keys.table_stride + position / 16];
          EXPECT_EQ(at, block * 16 + position % 16);
        }
      }
    }
  }
}

TEST(RefIndexTransformDeath, AListOfAnotherSpaceIsRefused) {
  int32_t index = 0, count = 1, start = 0;
  IndexTransformParams t;
  t.in = {IndexSpace::slot, 1, 1, &index, &count};
  t.out = {IndexSpace::ragged, 1, 1, &index, &count};
  t.ragged_start = &start;
  EXPECT_DEATH(ref::index_transform(t), "IndexSpace::position");
}

}  // namespace
}  // namespace fovea
