#include "kernels/ref/xattention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numbers>

#include "kernels/xattention_cases.h"

namespace fovea {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using testing::kXChoiceCases;
using testing::XCase;
using testing::XChoiceCase;
using testing::XProblem;

constexpr float kScale128 = 1.4426950408889634f / 11.313708498984761f;  // log2(e) / sqrt(128)

// The published example: even positions 1, odd positions 2.
std::vector<float> even_one_odd_two(int32_t len, int32_t dim) {
  std::vector<float> x;
  for (int32_t t = 0; t < len; ++t) x.insert(x.end(), dim, t % 2 == 0 ? 1.0f : 2.0f);
  return x;
}

// The sums of `a`.
struct BlockSums {
  BlockSums(const SoftmaxBlockSumParams& params, std::vector<float> a) : p(params) {
    out.resize(static_cast<size_t>(p.batch) * p.heads * p.row_blocks() * p.col_blocks(), NAN);
    p.attn_weights_slice = a.data();
    p.block_sums = out.data();
    ref::softmax_fuse_block_sum(p);
  }
  SoftmaxBlockSumParams p;
  std::vector<float> out;
};
std::vector<float> equal_scores(int32_t count) { return std::vector<float>(count, 1024.0f); }

TEST(XAttentionUnfused, AntidiagonalsOfThePublishedExample) {
  const auto q = even_one_odd_two(512, 128), k = even_one_odd_two(2048, 128);
  std::vector<float> a(128 * 512);
  FlatGroupGemmParams p{
      .query_states = q.data(), .key_states = k.data(), .q_len = 512, .kv_len = 2048, .head_dim = 128, .stride = 4};
  p.chunk_end = 128;
  p.is_causal = false;
  p.attn_weights = a.data();
  ASSERT_EQ(p.q_cells(), 128);
  ASSERT_EQ(p.k_cells(), 512);
  ref::flat_group_gemm_fuse_reshape(p);
  EXPECT_THAT(a, Each(1024.0f));
}

TEST(XAttentionUnfused, SumsOfThePublishedExample) {
  SoftmaxBlockSumParams p{.rows = 128, .cols = 512, .reshaped_block_size = 128, .segment_size = 128, .chunk_end = 128};
  p.real_q_len = 128;
  p.scale = kScale128 / 4;
  p.is_causal = false;
  const BlockSums whole(p, equal_scores(128 * 512));
  ASSERT_EQ(whole.out.size(), 4u);
  for (float x : whole.out) EXPECT_NEAR(x, 32.0f, 1e-4f);
  p.reshaped_block_size = 32;
  const BlockSums tokens(p, equal_scores(128 * 512));
  ASSERT_EQ(tokens.out.size(), 4u * 16);
  for (float x : tokens.out) EXPECT_NEAR(x, 2.0f, 1e-5f);
}

TEST(XAttentionUnfused, TheChunkStandsWhereItSays) {
  // Rows are cells 2 and 3: causal, they see 3 and 4 equal columns.
  const BlockSums sums(
      {.rows = 2, .cols = 6, .reshaped_block_size = 1, .segment_size = 2, .chunk_start = 2, .chunk_end = 4, .real_q_len = 4},
      equal_scores(12));
  const float third = 1.0f / 3, quarter = 0.25f;
  EXPECT_THAT(sums.out, ::testing::Pointwise(::testing::FloatEq(), {third, third, third, 0.0f, 0.0f, 0.0f, quarter, quarter,
                                                                    quarter, quarter, 0.0f, 0.0f}));
}

TEST(XAttentionUnfused, PaddingRowsAddNothing) {
  SoftmaxBlockSumParams p{.rows = 4, .cols = 4, .reshaped_block_size = 2, .segment_size = 2, .chunk_end = 4, .real_q_len = 3};
  p.is_causal = false;
  const BlockSums sums(p, equal_scores(16));
  for (int32_t c = 0; c < 2; ++c) {
    EXPECT_NEAR(sums.out[c], 1.0f, 1e-6f) << "two rows, half of each";
    EXPECT_NEAR(sums.out[2 + c], 0.5f, 1e-6f) << "one row is padding";
  }
  p.chunk_start = 8, p.chunk_end = 12;
  EXPECT_THAT(BlockSums(p, equal_scores(16)).out, Each(0.0f));
}

TEST(XAttentionUnfused, SegmentsChangeNothingButRounding) {
  std::vector<float> a;
  std::mt19937 rng(3);
  for (int i = 0; i < 2 * 2 * 5 * 23; ++i) a.push_back(std::normal_distribution<float>(0, 30)(rng));
  SoftmaxBlockSumParams p{.batch = 2, .heads = 2, .rows = 5, .cols = 23, .reshaped_block_size = 2, .segment_size = 100};
  p.chunk_start = 4, p.chunk_end = p.real_q_len = 9;
  p.scale = 0.3f;
  const BlockSums once(p, a);
  for (int32_t segment : {2, 3, 7, 23}) {
    p.segment_size = segment;
    EXPECT_THAT(BlockSums(p, a).out, ::testing::Pointwise(::testing::FloatNear(1e-6f), once.out));
  }
}

TEST(XAttentionUnfused, LengthsThatDoNotDivideAndSharedKeyHeads) {
  // 5 queries and 7 keys, cells of 4: what is not there is in no pair.
  std::vector<float> q, k, a(2 * 2 * 2);
  for (int i = 0; i < 2 * 5; ++i) q.push_back(static_cast<float>(i + 1));
  for (int i = 0; i < 7; ++i) k.push_back(static_cast<float>(i % 3 - 1));
  FlatGroupGemmParams p{
      .query_states = q.data(), .key_states = k.data(), .heads = 2, .q_len = 5, .kv_len = 7, .head_dim = 1, .stride = 4};
  p.chunk_start = 1, p.chunk_end = 3;
  p.attn_weights = a.data();
  ref::flat_group_gemm_fuse_reshape(p);
  for (int h = 0; h < 2; ++h) {
    const float *x = q.data() + h * 5, *row = a.data() + h * 4;  // x[0] is position 4
    EXPECT_EQ(row[0], x[3] * k[0] + x[2] * k[1] + x[1] * k[2] + x[0] * k[3]);
    EXPECT_EQ(row[1], x[3] * k[4] + x[2] * k[5]) << "keys 6 and 7 are after their queries";
    EXPECT_EQ(row[2], x[4] * k[3]);
    EXPECT_EQ(row[3], -INFINITY) << "the query at 8 meets the key at 7, which is not there";
  }
}

TEST(XAttentionChoice, EqualsTheTable) {
  for (const XChoiceCase& c : kXChoiceCases) {
    const ref::ForcedBlocks forced{c.sink, c.diagonal_begin, c.diagonal_end};
    const auto blocks = static_cast<int32_t>(c.sums.size());
    EXPECT_EQ(ref::choose_blocks(c.sums.data(), blocks, forced, c.threshold, c.top_k), c.units) << c.name;
  }
}

TEST(XAttentionChoice, HalfOfTheVotesIsEnough) {
  const std::vector<std::vector<int32_t>> lists = {{0, 1, 2, 4}, {0, 1, 4}, {0, 4}, {0}};
  EXPECT_THAT(ref::majority_blocks(lists, 5), ElementsAre(0, 1, 4));
  EXPECT_THAT(ref::majority_blocks({{0, 1}, {1}, {2}}, 5), ElementsAre(1)) << "2 of 3";
}

TEST(XAttentionTiles, AreCutAtAbsolutePositions) {
  const int32_t indptr[] = {0, 300, 300, 301}, len[] = {500, 7, 129};
  std::vector<int32_t> seq(301), at(302);
  ASSERT_EQ(xattention_tiles(indptr, len, 3, 128, seq.data(), at.data()), 4);
  EXPECT_THAT(std::vector<int32_t>(seq.begin(), seq.begin() + 4), ElementsAre(0, 0, 0, 2));
  EXPECT_THAT(std::vector<int32_t>(at.begin(), at.begin() + 5), ElementsAre(0, 56, 184, 300, 301));
}

class XAttentionRef : public ::testing::TestWithParam<XCase> {};

// P by the definition, pair by pair, from contiguous keys.
std::vector<double> by_hand(XProblem& problem, int32_t tile, int32_t head) {
  const XAttentionParams& p = problem.params();
  const int32_t seq = p.tile_seq[tile], d = p.kv.head_dim, kv_head = head / (p.num_heads / p.kv.kv_heads);
  const int64_t len = p.seq_len[seq], shift = len - p.q_indptr[seq + 1];
  const float* keys = problem.memory().keys(seq).data() + kv_head * len * d;
  std::vector<double> sums(p.capacity, 0.0);
  std::vector<std::vector<double>> rows((len + p.stride - 1) / p.stride);
  std::vector<std::vector<bool>> has(rows.size());
  for (int32_t row = p.tile_indptr[tile]; row < p.tile_indptr[tile + 1]; ++row) {
    const int64_t pos = shift + row, i = pos / p.stride;
    rows[i].resize(rows.size(), 0.0);
    has[i].resize(rows.size(), false);
    for (int64_t t = 0; t < (p.causal ? pos + 1 : len); ++t) {
      if (pos % p.stride + t % p.stride != p.stride - 1) continue;  // not on an antidiagonal
      for (int32_t e = 0; e < d; ++e)
        rows[i][t / p.stride] += double{p.q[(int64_t{row} * p.num_heads + head) * d + e]} * keys[t * d + e];
      has[i][t / p.stride] = true;
    }
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    double total = 0, most = -INFINITY;
    for (size_t j = 0; j < rows[i].size(); ++j) most = has[i][j] ? std::max(most, rows[i][j]) : most;
    for (size_t j = 0; j < rows[i].size(); ++j) {
      rows[i][j] = has[i][j] ? std::exp((rows[i][j] - most) * p.scale / (p.stride * p.norm)) : 0.0;
      total += rows[i][j];
    }
    for (size_t j = 0; j < rows[i].size() && total > 0; ++j) sums[j * p.stride / p.block_size] += rows[i][j] / total;
  }
  return sums;
}

TEST_P(XAttentionRef, EqualsTheDefinition) {
  XProblem problem(GetParam());
  ref::xattention_select(problem.params());
  const XAttentionParams& p = problem.params();
  for (int32_t t = 0; t < p.tiles; ++t) {
    for (int32_t h = 0; h < p.num_heads; ++h) {
      const auto sums = problem.sums(t, h);
      const auto want = by_hand(problem, t, h);
      for (int32_t u = 0; u < p.capacity; ++u)
        ASSERT_NEAR(sums[u], want[u], 1e-4) << "tile " << t << " head " << h << " block " << u;
      if (p.group_vote) continue;
      const auto at = ref::place_of_tile(p, t);
      EXPECT_EQ(problem.list(t, h), ref::choose_blocks(sums.data(), at.blocks, at.forced, p.threshold[h], p.top_k));
    }
  }
}

// A chunk that starts on a cell: the two unfused operations over contiguous arrays give the same sums.
TEST_P(XAttentionRef, EqualsTheUnfusedOperations) {
  XProblem problem(GetParam());
  ref::xattention_select(problem.params());
  const XAttentionParams& p = problem.params();
  const int32_t d = p.kv.head_dim, per_block = p.block_size / p.stride;
  int compared = 0;
  for (int32_t t = 0; t < p.tiles; ++t) {
    const auto at = ref::place_of_tile(p, t);
    const auto rows = static_cast<int32_t>(at.end - at.begin);
    if (at.begin % p.stride != 0 || (!p.causal && (rows % p.stride != 0))) continue;
    std::vector<float> q(int64_t{p.num_heads} * rows * d), k(int64_t{p.kv.kv_heads} * at.len * d);
    for (int32_t h = 0; h < p.num_heads; ++h) {
      for (int32_t r = 0; r < rows; ++r)
        std::copy_n(p.q + ((int64_t{p.tile_indptr[t]} + r) * p.num_heads + h) * d, d, q.data() + (int64_t{h} * rows + r) * d);
    }
    const int64_t len = p.seq_len[at.seq];
    for (int32_t h = 0; h < p.kv.kv_heads; ++h)
      std::copy_n(problem.memory().keys(at.seq).data() + h * len * d, at.len * d, k.data() + h * at.len * d);
    const auto start = static_cast<int32_t>(at.begin / p.stride), cells = (rows + p.stride - 1) / p.stride;
    FlatGroupGemmParams gemm{.query_states = q.data(),
                             .key_states = k.data(),
                             .heads = p.num_heads,
                             .kv_heads = p.kv.kv_heads,
                             .q_len = rows,
                             .kv_len = static_cast<int32_t>(at.len),
                             .head_dim = d,
                             .stride = p.stride,
                             .chunk_start = start,
                             .chunk_end = start + cells,
                             .is_causal = p.causal};
    std::vector<float> a(int64_t{p.num_heads} * cells * gemm.k_cells());
    gemm.attn_weights = a.data();
    ref::flat_group_gemm_fuse_reshape(gemm);
    SoftmaxBlockSumParams sum{.heads = p.num_heads,
                              .rows = cells,
                              .cols = gemm.k_cells(),
                              .reshaped_block_size = per_block,
                              .segment_size = 2 * per_block,
                              .chunk_start = start,
                              .chunk_end = start + cells,
                              .real_q_len = start + cells,
                              .scale = std::numbers::log2e_v<float> * p.scale / (p.stride * p.norm),
                              .is_causal = p.causal};
    const BlockSums sums(sum, a);
    ++compared;
    for (int32_t h = 0; h < p.num_heads; ++h) {
      const auto want = problem.sums(t, h);
      for (int32_t u = 0; u < sum.col_blocks(); ++u) {
        float got = 0;
        for (int32_t r = 0; r < sum.row_blocks(); ++r) got += sums.out[(int64_t{h} * sum.row_blocks() + r) * sum.col_blocks() + u];
        ASSERT_NEAR(got, want[u], 2e-4f) << "tile " << t << " head " << h << " block " << u;
      }
    }
  }
  EXPECT_GT(compared, 0);
}

INSTANTIATE_TEST_SUITE_P(All, XAttentionRef, ::testing::ValuesIn(testing::xattention_cases()),
                         [](const auto& i) { return i.param.name; });

// ---- Goldens of tools/make_xattention_goldens.py ------------------------------------------------------------------

// Both sides draw the same floats, exact in float32, in [-1, 1).
std::vector<float> draw(int64_t count, uint64_t state) {
  std::vector<float> x;
  for (int64_t i = 0; i < count; ++i) {
    state += 0x9e3779b97f4a7c15ull;
    uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    x.push_back(static_cast<float>(static_cast<int64_t>((z ^ (z >> 31)) >> 40)) * 0x1p-23f - 1.0f);
  }
  return x;
}

TEST(XAttentionGolden, SumsAndChoicesOfAnIndependentProgram) {
  std::ifstream in(FOVEA_SOURCE_DIR "/tests/data/xattention/estimate.json");
  ASSERT_TRUE(in.good());
  const auto golden = nlohmann::json::parse(in);
  ASSERT_GE(golden.at("cases").size(), 6u);
  for (const auto& g : golden.at("cases")) {
    SCOPED_TRACE(g.at("name").get<std::string>());
    const int32_t heads = g["heads"], kv_heads = g["kv_heads"], d = g["head_dim"], rows = g["rows"], len = g["len"];
    const auto q = draw(int64_t{rows} * heads * d, g["q_seed"]), k = draw(int64_t{len} * kv_heads * d, g["k_seed"]);
    std::vector<float> pages(k.size());  // one page a token, in reverse
    std::vector<int32_t> table;
    for (int32_t t = 0; t < len; ++t) {
      table.push_back(len - 1 - t);
      std::copy_n(k.data() + int64_t{t} * kv_heads * d, kv_heads * d, pages.data() + int64_t{len - 1 - t} * kv_heads * d);
    }
    const int32_t indptr[] = {0, rows};
    std::vector<float> threshold = g["threshold"];
    std::vector<int32_t> seq(rows), at(rows + 1);
    XAttentionParams p;
    p.q = q.data();
    p.num_heads = heads;
    p.num_seqs = 1;
    p.q_indptr = indptr;
    p.seq_len = &len;
    p.kv = {.k = pages.data(),
            .dtype = DType::f32,
            .block_size = 1,
            .kv_heads = kv_heads,
            .head_dim = d,
            .block_stride = int64_t{kv_heads} * d,
            .head_stride = d,
            .table = {table.data(), len, 0}};
    p.scale = g["scale"];
    p.stride = g["stride"];
    p.block_size = g["block_size"];
    p.norm = g["norm"];
    p.causal = g["causal"];
    p.sink_blocks = g["sink_blocks"];
    p.top_k = g["top_k"];
    p.recent_blocks = g["recent_blocks"];
    p.group_vote = g["group_vote"];
    p.threshold = threshold.data();
    p.tiles = xattention_tiles(indptr, &len, 1, p.block_size, seq.data(), at.data());
    p.tile_seq = seq.data();
    p.tile_indptr = at.data();
    p.capacity = (len + p.block_size - 1) / p.block_size;
    const int32_t groups = p.group_vote ? kv_heads : heads;
    std::vector<int32_t> units(int64_t{p.tiles} * groups * p.capacity), counts(p.tiles * groups);
    std::vector<float> sums(int64_t{p.tiles} * heads * p.capacity);
    p.units = units.data();
    p.counts = counts.data();
    p.sums = sums.data();
    ref::xattention_select(p);
    const std::vector<float> want = g["sums"];
    ASSERT_EQ(sums.size(), want.size());
    for (size_t i = 0; i < sums.size(); ++i) ASSERT_NEAR(sums[i], want[i], 2e-5f) << i;
    const std::vector<std::vector<int32_t>> lists = g["units"];
    ASSERT_EQ(lists.size(), counts.size());
    for (size_t i = 0; i < lists.size(); ++i) {
      const auto from = units.begin() + static_cast<int64_t>(i) * p.capacity;
      EXPECT_EQ(std::vector<int32_t>(from, from + counts[i]), lists[i]) << "list " << i;
    }
  }
}

}  // namespace
}  // namespace fovea
