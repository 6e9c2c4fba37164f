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
using ::testing::HasSubstr;
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

ref::CellArray equal_scores(int32_t rows, int32_t cols) {
  return {1, 1, rows, cols, std::vector<float>(static_cast<size_t>(rows) * cols, 1024.0f)};
}

TEST(XAttentionUnfused, AntidiagonalsOfThePublishedExample) {
  const auto q = even_one_odd_two(512, 128), k = even_one_odd_two(2048, 128);
  const auto a = ref::flat_group_gemm_fuse_reshape({q.data(), 1, 1, 512, 128}, {k.data(), 1, 1, 2048, 128}, 4, 0, 128, false);
  ASSERT_TRUE(a.ok()) << a.status().message();
  EXPECT_EQ(a->rows, 128);
  EXPECT_EQ(a->cols, 512);
  EXPECT_THAT(a->data, Each(1024.0f));
}

TEST(XAttentionUnfused, SumsOfThePublishedExample) {
  const auto whole = ref::softmax_fuse_block_sum(equal_scores(128, 512), 128, 128, 0, 128, 128, kScale128 / 4, false);
  ASSERT_TRUE(whole.ok());
  EXPECT_EQ(whole->rows, 1);
  EXPECT_EQ(whole->cols, 4);
  for (float x : whole->data) EXPECT_NEAR(x, 32.0f, 1e-4f);
  const auto tokens = ref::softmax_fuse_block_sum(equal_scores(128, 512), 32, 64, 0, 128, 128, kScale128 / 4, false);
  ASSERT_TRUE(tokens.ok());
  EXPECT_EQ(tokens->rows, 4);
  EXPECT_EQ(tokens->cols, 16);
  for (float x : tokens->data) EXPECT_NEAR(x, 2.0f, 1e-5f);
}

TEST(XAttentionUnfused, TheChunkStandsWhereItSays) {
  // Rows are cells 2 and 3: causal, they see 3 and 4 equal columns.
  const auto sums = ref::softmax_fuse_block_sum(equal_scores(2, 6), 1, 2, 2, 4, 4, 0.1f, true);
  ASSERT_TRUE(sums.ok());
  const float third = 1.0f / 3, quarter = 0.25f;
  EXPECT_THAT(sums->data, ::testing::Pointwise(::testing::FloatEq(), {third, third, third, 0.0f, 0.0f, 0.0f, quarter, quarter,
                                                                      quarter, quarter, 0.0f, 0.0f}));
}

TEST(XAttentionUnfused, PaddingRowsAddNothing) {
  const auto sums = ref::softmax_fuse_block_sum(equal_scores(4, 4), 2, 2, 0, 4, 3, 0.1f, false);
  ASSERT_TRUE(sums.ok());
  for (int32_t c = 0; c < 2; ++c) {
    EXPECT_NEAR(sums->row(0, 0, 0)[c], 1.0f, 1e-6f) << "two rows, half of each";
    EXPECT_NEAR(sums->row(0, 0, 1)[c], 0.5f, 1e-6f) << "one row is padding";
  }
  const auto none = ref::softmax_fuse_block_sum(equal_scores(4, 4), 2, 2, 8, 12, 3, 0.1f, true);
  ASSERT_TRUE(none.ok());
  EXPECT_THAT(none->data, Each(0.0f));
}

TEST(XAttentionUnfused, SegmentsChangeNothingButRounding) {
  ref::CellArray a{2, 2, 5, 23, {}};
  std::mt19937 rng(3);
  for (int i = 0; i < 2 * 2 * 5 * 23; ++i) a.data.push_back(std::normal_distribution<float>(0, 30)(rng));
  const auto once = ref::softmax_fuse_block_sum(a, 2, 100, 4, 9, 9, 0.3f, true);
  for (int32_t segment : {2, 3, 7, 23}) {
    const auto sums = ref::softmax_fuse_block_sum(a, 2, segment, 4, 9, 9, 0.3f, true);
    ASSERT_TRUE(sums.ok());
    ASSERT_EQ(sums->data.size(), once->data.size());
    for (size_t i = 0; i < once->data.size(); ++i) EXPECT_NEAR(sums->data[i], once->data[i], 1e-6f);
  }
}

TEST(XAttentionUnfused, LengthsThatDoNotDivideAndSharedKeyHeads) {
  // 5 queries and 7 keys, cells of 4: what is not there is in no pair.
  std::vector<float> q, k;
  for (int i = 0; i < 2 * 5; ++i) q.push_back(static_cast<float>(i + 1));
  for (int i = 0; i < 7; ++i) k.push_back(static_cast<float>(i % 3 - 1));
  const auto a = ref::flat_group_gemm_fuse_reshape({q.data(), 1, 2, 5, 1}, {k.data(), 1, 1, 7, 1}, 4, 1, 3, true);
  ASSERT_TRUE(a.ok());
  ASSERT_EQ(a->rows, 2);
  ASSERT_EQ(a->cols, 2);
  for (int h = 0; h < 2; ++h) {
    const float* x = q.data() + h * 5;  // x[0] is position 4
    EXPECT_EQ(a->row(0, h, 0)[0], x[3] * k[0] + x[2] * k[1] + x[1] * k[2] + x[0] * k[3]);
    EXPECT_EQ(a->row(0, h, 0)[1], x[3] * k[4] + x[2] * k[5]) << "keys 6 and 7 are after their queries";
    EXPECT_EQ(a->row(0, h, 1)[0], x[4] * k[3]);
    EXPECT_EQ(a->row(0, h, 1)[1], -INFINITY) << "the query at 8 meets the key at 7, which is not there";
  }
}

TEST(XAttentionUnfused, RefusesByName) {
  const std::vector<float> x(64, 0.0f);
  const ref::HeadArray q{x.data(), 1, 2, 8, 4}, k{x.data(), 1, 2, 8, 4};
  const auto gemm = [&](ref::HeadArray key, int32_t stride, int32_t start, int32_t end) {
    return ref::flat_group_gemm_fuse_reshape(q, key, stride, start, end).status().message();
  };
  EXPECT_THAT(gemm(k, 1, 0, 8), HasSubstr("stride is 1"));
  EXPECT_THAT(gemm({x.data(), 2, 2, 8, 4}, 4, 0, 2), HasSubstr("key.batch is 2"));
  EXPECT_THAT(gemm({x.data(), 1, 3, 8, 4}, 4, 0, 2), HasSubstr("key.heads is 3"));
  EXPECT_THAT(gemm({x.data(), 1, 2, 8, 2}, 4, 0, 2), HasSubstr("key.dim is 2"));
  EXPECT_THAT(gemm(k, 4, -1, 1), HasSubstr("chunk_start is -1"));
  EXPECT_THAT(gemm(k, 4, 0, 3), HasSubstr("chunk_end is 3"));
  const auto sum = [&](int32_t block, int32_t segment, int32_t start, int32_t end, int32_t real) {
    return ref::softmax_fuse_block_sum(equal_scores(4, 4), block, segment, start, end, real, 1.0f).status().message();
  };
  EXPECT_THAT(sum(2, 1, 0, 4, 4), HasSubstr("segment_size is 1"));
  EXPECT_THAT(sum(0, 1, 0, 4, 4), HasSubstr("reshaped_block_size is 0"));
  EXPECT_THAT(sum(2, 2, -2, 2, 4), HasSubstr("chunk_start is -2"));
  EXPECT_THAT(sum(2, 2, 0, 5, 4), HasSubstr("chunk_end is 5"));
  EXPECT_THAT(sum(2, 2, 0, 4, -1), HasSubstr("real_q_len is -1"));
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
    const auto a = ref::flat_group_gemm_fuse_reshape({q.data(), 1, p.num_heads, rows, d},
                                                     {k.data(), 1, p.kv.kv_heads, static_cast<int32_t>(at.len), d}, p.stride, start,
                                                     start + cells, p.causal);
    ASSERT_TRUE(a.ok());
    const float scale = std::numbers::log2e_v<float> * p.scale / (p.stride * p.norm);
    const auto sums =
        ref::softmax_fuse_block_sum(*a, per_block, 2 * per_block, start, start + cells, start + cells, scale, p.causal);
    ASSERT_TRUE(sums.ok());
    ++compared;
    for (int32_t h = 0; h < p.num_heads; ++h) {
      const auto want = problem.sums(t, h);
      for (int32_t u = 0; u < sums->cols; ++u) {
        float got = 0;
        for (int32_t r = 0; r < sums->rows; ++r) got += sums->row(0, h, r)[u];
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
