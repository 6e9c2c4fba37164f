#include "kernels/cpu/dsa/dsa_topk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <tuple>
#include <vector>

#include "kernels/cpu/dsa/dsa_index_map.h"
#include "kernels/cpu/dsa/dsa_index_write.h"
#include "kernels/cpu/dsa/dsa_sweep.h"
#include "kernels/cpu/simd_targets_test_util.h"
#include "kernels/dsa_cases.h"
#include "kernels/ref/dsa_index.h"
#include "kernels/ref/dsa_topk.h"

namespace fovea {
namespace {

using testing::DsaCase;
using testing::DsaLists;
using testing::DsaProblem;
using testing::IndexData;

cpu::IndexTopk prepared(const DsaCase& c, int32_t max_rows, int threads) {
  OpsLimits limits;
  limits.max_rows = max_rows;
  limits.index_heads = c.heads;
  limits.index_dim = c.dim;
  limits.index_topk = c.topk;
  cpu::IndexTopk topk;
  EXPECT_TRUE(topk.prepare(limits, threads).ok());
  return topk;
}

DsaLists run(const DsaProblem& problem, int32_t max_rows, ThreadPool& pool, IndexSpace space = IndexSpace::slot,
             int32_t logits_rows = 0) {
  cpu::IndexTopk topk = prepared(problem.shape(), max_rows, pool.size());
  return problem.run([&](const IndexTopkParams& p) { topk.run(p, pool); }, space, logits_rows);
}

TEST(CpuIndexTopk, EqualsTheReferenceOnHostileCases) {
  ThreadPool pool(2);
  for (const DsaCase& c : testing::dsa_cases()) {
    SCOPED_TRACE(c.name);
    const DsaProblem problem(c);
    const DsaLists want = problem.run(ref::index_topk, IndexSpace::slot);
    cpu::for_each_target([&] { EXPECT_EQ(run(problem, problem.rows(), pool), want); });
  }
}

TEST(CpuIndexTopk, TheMaterialisedFormEqualsTheReferenceInAnyChunks) {
  ThreadPool pool(2);
  for (const DsaCase& c : testing::dsa_cases()) {
    SCOPED_TRACE(c.name);
    const DsaProblem problem(c);
    const DsaLists want = problem.run(ref::index_topk, IndexSpace::ragged);
    for (int32_t rows : {1, 7, problem.rows()})
      EXPECT_EQ(run(problem, problem.rows(), pool, IndexSpace::ragged, rows), want) << rows;
  }
}

// After the first cut the bound is 1: a key that equals it comes too late, one that beats it by its last bit does not.
TEST(CpuIndexTopk, TheLastBitOfAScoreCounts) {
  constexpr int32_t kKeys = 4000, kTopk = 32, kDim = 16;
  std::vector<float> k(kKeys * kDim, 0.0f), q(kDim, 0.0f);
  for (int32_t s = 0; s < kKeys; ++s) k[s * kDim] = s < kKeys - 5 ? 1.0f : std::nextafter(1.0f, 2.0f);
  q[0] = 1.0f;
  std::vector<int32_t> table(kKeys / 16), indices(kTopk), want(kTopk);
  std::iota(table.begin(), table.end(), 0);
  std::iota(want.begin(), want.begin() + 27, 0);
  std::iota(want.begin() + 27, want.end(), kKeys - 5);
  const float weight = 1.0f;
  const int32_t seq = 0, len = kKeys;
  int32_t count = 0;
  IndexTopkParams p;
  p.rows = p.heads = 1;
  p.q = q.data();
  p.weights = &weight;
  p.row_seq = &seq;
  p.row_len = &len;
  p.topk = kTopk;
  p.max_len = kKeys;
  p.keys = {IndexPrecision::exact, k.data(), nullptr, 16, kDim, table.data(), kKeys / 16};
  p.out = {IndexSpace::position, 1, kTopk, indices.data(), &count};
  ThreadPool pool(1);
  cpu::for_each_target([&] {
    cpu::IndexTopk topk = prepared({"last bit", 1, kDim, 16, IndexPrecision::exact, {}, kTopk}, 1, 1);
    topk.run(p, pool);
    EXPECT_EQ(count, kTopk);
    EXPECT_EQ(indices, want);
  });
}

// Long enough for several cuts of every list and for several ranges of keys.
TEST(CpuIndexTopk, StreamingEqualsMaterialisedOnLongContextsWithAnyThreads) {
  const DsaCase cases[] = {
      {"decode", 4, 128, 16, IndexPrecision::exact, {{1, 30000}, {1, 9000}, {1, 17}}, 512},
      {"decode fp8", 4, 128, 64, IndexPrecision::fp8, {{2, 30000}}, 2048},
      {"rows", 4, 64, 16, IndexPrecision::bf16, {{150, 12000}, {40, 3000}}, 256},
      {"ties", 4, 32, 64, IndexPrecision::bf16, {{70, 12000}}, 1024, IndexData::integers},
      {"equal", 2, 16, 16, IndexPrecision::exact, {{5, 40000}}, 2048, IndexData::constant},
      {"zeros", 2, 16, 16, IndexPrecision::exact, {{5, 40000}}, 2048, IndexData::zeros},
  };
  ThreadPool one(1), two(2), three(3);
  for (const DsaCase& c : cases) {
    SCOPED_TRACE(c.name);
    const DsaProblem problem(c);
    const DsaLists want = run(problem, problem.rows(), two, IndexSpace::slot, problem.rows());
    for (ThreadPool* pool : {&one, &two, &three}) EXPECT_EQ(run(problem, problem.rows(), *pool), want);
    EXPECT_EQ(run(problem, 1, two), want);  // the least room for lists
    cpu::for_each_target([&] { EXPECT_EQ(run(problem, problem.rows(), two), want); });
  }
}

TEST(CpuIndexTopk, PagesAndTheirSizeChangeNothing) {
  ThreadPool pool(2);
  for (IndexPrecision precision : {IndexPrecision::exact, IndexPrecision::bf16, IndexPrecision::fp8}) {
    std::vector<DsaLists> all;
    for (int32_t block_size : {16, 64}) {
      const DsaCase c{"", 4, 64, block_size, precision, {{5, 3000}, {1, 777}}, 200};
      for (uint64_t pages : {1, 2}) {
        all.push_back(run(DsaProblem(c, 7, pages), 6, pool, IndexSpace::position));
        EXPECT_EQ(all.back(), all.front()) << block_size << " " << pages;
      }
    }
  }
}

TEST(CpuIndexTopk, ARowDoesNotDependOnTheRowsBesideIt) {
  const DsaCase c{"", 8, 64, 16, IndexPrecision::exact, {{37, 5000}, {3, 700}}, 300};
  const DsaProblem problem(c);
  ThreadPool pool(2);
  const DsaLists all = run(problem, problem.rows(), pool);
  cpu::IndexTopk topk = prepared(c, 1, 2);
  for (int32_t r = 0; r < problem.rows(); ++r) {
    IndexTopkParams p = problem.params();
    std::vector<int32_t> positions(c.topk), counts(1);
    p.rows = 1;
    p.q += int64_t{r} * c.heads * c.dim;
    p.weights += int64_t{r} * c.heads;
    p.row_seq += r;
    p.row_len += r;
    p.out = {IndexSpace::position, 1, c.topk, positions.data(), counts.data()};
    topk.run(p, pool);
    ASSERT_TRUE(std::equal(positions.begin(), positions.end(), all.positions.begin() + int64_t{r} * c.topk)) << r;
  }
}

TEST(CpuIndexTopk, ScratchDoesNotGrowWithTheContext) {
  const DsaCase c{"", 64, 128, 16, IndexPrecision::exact, {{1, 10}}, 2048};
  const size_t rows_512 = prepared(c, 512, 2).scratch_bytes();
  EXPECT_EQ(prepared(c, 100'000, 2).scratch_bytes(), rows_512);
  EXPECT_LT(prepared(c, 1, 2).scratch_bytes(), rows_512);
  EXPECT_LT(rows_512, size_t{24} << 20);  // 512 rows of 131,072 logits: 256 MiB
}

TEST(CpuIndexTopk, AnIndexerThatIsTooLargeIsRefused) {
  for (const auto& [heads, dim, part] : {std::tuple{129, 128, "129 heads"}, {4, 260, "heads of 260"}, {4, 12, "heads of 12"}}) {
    OpsLimits limits;
    limits.index_heads = heads;
    limits.index_dim = dim;
    limits.index_topk = 8;
    cpu::IndexTopk topk;
    const Status s = topk.prepare(limits, 1);
    EXPECT_FALSE(s.ok());
    EXPECT_NE(s.message().find(part), std::string::npos) << s.message();
  }
}

TEST(CpuIndexTransform, EqualsTheReferenceOnEveryCase) {
  for (const DsaCase& c : testing::dsa_cases()) {
    SCOPED_TRACE(c.name);
    const DsaProblem problem(c);
    const DsaLists after = problem.run(ref::index_topk);
    for (IndexSpace space : {IndexSpace::slot, IndexSpace::ragged}) {
      std::vector<int32_t> want_counts, counts;
      const std::vector<int32_t> want = problem.transformed(ref::index_transform, after, space, &want_counts);
      EXPECT_EQ(problem.transformed(cpu::index_transform, after, space, &counts), want);
      EXPECT_EQ(counts, want_counts);
    }
  }
}

TEST(CpuIndexKeep, RanksAsTheReferenceDoes) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  std::mt19937 rng(5);
  // One head, one dimension after another's zeros: a key's score is its first element where the weight is 1.
  for (const std::vector<float>& kinds :
       std::vector<std::vector<float>>{{0.0f, 1.0f, 2.0f}, {kNan, 3.0f, kInf, 1e-40f}, {kNan}, {kNan, 0.0f}, {1e38f, kInf, 5.0f}}) {
    for (float weight : {1.0f, -1.0f}) {
      const int32_t len = 20000, topk = 300, zero = 0;
      std::vector<float> keys(int64_t{len} * 16, 0.0f), q(16, 0.0f);
      for (int32_t s = 0; s < len; ++s) keys[int64_t{s} * 16] = kinds[rng() % kinds.size()];
      q[0] = 1;
      IndexTopkParams p;
      p.rows = p.heads = 1;
      p.q = q.data();
      p.weights = &weight;
      p.row_seq = &zero;
      p.row_len = &len;
      p.topk = topk;
      p.max_len = len;
      std::vector<int32_t> table(len / 16), want(topk), got(topk);
      std::iota(table.begin(), table.end(), 0);
      p.keys = {IndexPrecision::exact, keys.data(), nullptr, 16, 16, table.data(), len / 16};
      int32_t count = 0;
      p.out = {IndexSpace::position, 1, topk, want.data(), &count};
      ref::index_topk(p);
      ThreadPool pool(2);
      cpu::IndexTopk streaming = prepared({"", 1, 16, 16, IndexPrecision::exact, {}, topk}, 1, 2);
      p.out.indices = got.data();
      cpu::for_each_target([&] {
        streaming.run(p, pool);
        EXPECT_EQ(got, want);
      });
    }
  }
}

TEST(CpuIndexWrite, EqualsTheReferenceBitForBit) {
  std::mt19937 rng(9);
  std::normal_distribution<float> normal;
  ThreadPool pool(3);
  for (IndexPrecision precision : {IndexPrecision::exact, IndexPrecision::bf16, IndexPrecision::fp8}) {
    for (bool interleaved : {false, true}) {
      const int32_t tokens = 21, dim = 128, rope = 64;
      int32_t heads = 19;
      std::vector<float> q(tokens * heads * dim), k(tokens * dim), w(tokens * heads), norm(dim), bias(dim), cos(tokens * rope / 2),
          sin;
      for (auto* v : {&q, &k, &w, &norm, &bias, &cos}) {
        for (float& x : *v) x = normal(rng);
      }
      sin = cos;
      std::vector<int64_t> slots(tokens);
      for (int32_t t = 0; t < tokens; ++t) slots[t] = t == 4 ? -1 : (t * 5) % 32;
      const auto write = [&](const auto& fn, std::vector<float>& q_out, std::vector<float>& w_out, std::vector<std::byte>& plane,
                             std::vector<float>& scale) {
        plane.assign(32 * dim * index_element_bytes(precision), std::byte{7});
        scale.assign(32, 9);
        IndexWriteParams p{tokens,       heads,
                           q_out.data(), k.data(),
                           w_out.data(), norm.data(),
                           bias.data(),  1e-6f,
                           rope,         interleaved,
                           cos.data(),   sin.data(),
                           slots.data(), {precision, plane.data(), scale.data(), 16, dim, nullptr, 0}};
        fn(p);
      };
      std::vector<float> q1 = q, q2 = q, w1 = w, w2 = w, s1, s2;
      std::vector<std::byte> p1, p2;
      write([](const IndexWriteParams& p) { ref::index_write(p); }, q1, w1, p1, s1);
      cpu::for_each_target([&] {
        q2 = q, w2 = w;
        write([&](const IndexWriteParams& p) { cpu::index_write(p, pool); }, q2, w2, p2, s2);
        EXPECT_EQ(q2, q1);
        EXPECT_EQ(w2, w1);
        EXPECT_EQ(p2, p1);
        EXPECT_EQ(s2, s1);
      });
      const std::vector<float> q3 = q2, w3 = w2;
      heads = 0;  // keys alone
      write([](const IndexWriteParams& p) { ref::index_write(p); }, q2, w2, p2, s2);
      EXPECT_TRUE(p2 == p1 && s2 == s1);
      write([&](const IndexWriteParams& p) { cpu::index_write(p, pool); }, q2, w2, p2, s2);
      EXPECT_TRUE(p2 == p1 && s2 == s1 && q2 == q3 && w2 == w3);
    }
  }
}

}  // namespace
}  // namespace fovea
