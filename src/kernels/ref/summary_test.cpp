// Summaries of blocks and selections by them, against values worked out by hand.
#include "kernels/ref/summary.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/attention_cases.h"
#include "kernels/ref/hash.h"

namespace fovea {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Blocks of 8 tokens, 2 KV heads, d 8, f32: all NaN until written.
struct Cache {
  static constexpr int kBlocks = 6, kBs = 8, kHeads = 2, kD = 8;

  Cache() : k(kBlocks * kHeads * kBs * kD, kNan) {
    kv.k = k.data();
    kv.dtype = DType::f32;
    kv.block_size = kBs;
    kv.kv_heads = kHeads;
    kv.head_dim = kD;
    kv.head_stride = kBs * kD;
    kv.block_stride = kHeads * kBs * kD;
    kv.table = {table.data(), static_cast<int64_t>(table.size()), 0};
  }

  // Every element of a token's key.
  void write(int64_t slot, int head, float value) {
    std::fill_n(k.begin() + slot / kBs * kv.block_stride + head * kv.head_stride + slot % kBs * kD, kD, value);
  }

  std::vector<float> k;
  std::vector<int32_t> table = {4, 1, 3, 0};
  KvView kv;
};

struct Summaries {
  Summaries() : mean(Cache::kBlocks * Cache::kHeads * Cache::kD, -7.0f), minmax(mean.size() * 2, -7.0f) {}

  void update(const Cache& c, const std::vector<int64_t>& slots) {
    BlockSummariesParams p;
    p.tokens = static_cast<int32_t>(slots.size());
    p.slot_mapping = slots.data();
    p.kv = c.kv;
    p.mean = mean.data();
    p.minmax = minmax.data();
    ref::block_summaries(p);
  }
  float mean_of(int block, int head) const { return mean[(block * Cache::kHeads + head) * Cache::kD + 3]; }
  float least_of(int block, int head) const { return minmax[(block * Cache::kHeads + head) * 2 * Cache::kD + 5]; }
  float most_of(int block, int head) const { return minmax[(block * Cache::kHeads + head) * 2 * Cache::kD + Cache::kD + 5]; }

  std::vector<float> mean, minmax;
};

TEST(BlockSummaries, ABlockGainsTokensAndUnwrittenOnesNeverCount) {
  Cache c;
  Summaries s;
  for (int t = 0; t < Cache::kBs; ++t) {
    const int64_t slot = 4 * Cache::kBs + t;
    c.write(slot, 0, static_cast<float>(t + 1));
    c.write(slot, 1, static_cast<float>(-t));
    s.update(c, {slot});
    EXPECT_EQ(s.mean_of(4, 0), (t + 2) / 2.0f);
    EXPECT_EQ(s.mean_of(4, 1), -t / 2.0f);
    EXPECT_EQ(s.least_of(4, 0), 1.0f);
    EXPECT_EQ(s.most_of(4, 0), t + 1.0f);
    EXPECT_EQ(s.least_of(4, 1), static_cast<float>(-t));
    EXPECT_EQ(s.most_of(4, 1), 0.0f);
  }
  EXPECT_EQ(s.mean_of(3, 0), -7.0f) << "a block that no token touched was written";
  EXPECT_EQ(s.mean_of(5, 1), -7.0f);
}

TEST(BlockSummaries, SeveralTokensOfABlockInAnyOrderAndSkippedSlots) {
  Cache c;
  Summaries s;
  for (int t = 0; t < 5; ++t) c.write(Cache::kBs + t, 0, static_cast<float>(t)), c.write(Cache::kBs + t, 1, 1.0f);
  for (int t = 0; t < 2; ++t) c.write(t, 0, 10.0f), c.write(t, 1, 20.0f);
  s.update(c, {-1, Cache::kBs + 4, 1, -1, Cache::kBs + 3, 0, -1});
  EXPECT_EQ(s.mean_of(1, 0), 2.0f) << "0 to 4, though 0, 1 and 2 were written before";
  EXPECT_EQ(s.most_of(1, 0), 4.0f);
  EXPECT_EQ(s.mean_of(0, 1), 20.0f);
  s.update(c, {});
  s.update(c, {-1, -1});
  EXPECT_EQ(s.mean_of(1, 0), 2.0f);
}

TEST(BlockSummaries, TheCodeIsThatOfTheMean) {
  Cache c;
  const HashRotation rotation = HashRotation::make(Cache::kD, 128).value();
  for (int64_t i = 0; i < 3 * Cache::kD; ++i) c.k[2 * c.kv.block_stride + i] = static_cast<float>((i * 37 + 11) % 23) - 9;
  for (int64_t i = 0; i < 3 * Cache::kD; ++i) c.k[2 * c.kv.block_stride + c.kv.head_stride + i] = static_cast<float>(i);
  std::vector<float> mean(c.k.size(), 0.0f);
  std::vector<uint64_t> codes(Cache::kBlocks * Cache::kHeads * 2, 0);
  const std::vector<int64_t> slots = {2 * Cache::kBs + 2};
  BlockSummariesParams p;
  p.tokens = 1;
  p.slot_mapping = slots.data();
  p.kv = c.kv;
  p.mean = mean.data();
  p.mean_codes = codes.data();
  p.codec = rotation.codec();
  ref::block_summaries(p);
  for (int h = 0; h < 2; ++h) {
    uint64_t want[2];
    ref::hash_encode(rotation.codec(), mean.data() + (2 * Cache::kHeads + h) * Cache::kD, want);
    EXPECT_EQ(codes[(2 * 2 + h) * 2], want[0]) << h;
    EXPECT_EQ(codes[(2 * 2 + h) * 2 + 1], want[1]) << h;
  }
}

TEST(EncodeCodes, WritesWhatTheFusedWriteWould) {
  Cache c;
  const HashRotation rotation = HashRotation::make(Cache::kD, 64, 9).value();
  std::vector<uint64_t> codes(Cache::kBlocks * Cache::kHeads * Cache::kBs, 77);
  for (int i = 0; i < Cache::kD; ++i) c.k[3 * c.kv.block_stride + c.kv.head_stride + 6 * Cache::kD + i] = float(i * i) - 20;
  c.write(3 * Cache::kBs + 6, 0, 1.0f);
  const std::vector<int64_t> slots = {-1, 3 * Cache::kBs + 6};
  EncodeCodesParams p;
  p.tokens = 2;
  p.slot_mapping = slots.data();
  p.kv = c.kv;
  p.codes = {codes.data(), Cache::kHeads * Cache::kBs, Cache::kBs, rotation.codec()};
  ref::encode_codes(p);
  uint64_t want;
  ref::hash_encode(rotation.codec(), c.k.data() + 3 * c.kv.block_stride + c.kv.head_stride + 6 * Cache::kD, &want);
  EXPECT_EQ(codes[(3 * Cache::kHeads + 1) * Cache::kBs + 6], want);
  EXPECT_EQ(std::count(codes.begin(), codes.end(), 77u), static_cast<int64_t>(codes.size()) - 2);
  const std::vector<int64_t> elsewhere = {-1, 1 * Cache::kBs + 2};
  p.code_mapping = elsewhere.data();
  ref::encode_codes(p);
  EXPECT_EQ(codes[(1 * Cache::kHeads + 1) * Cache::kBs + 2], want);
  EXPECT_EQ(std::count(codes.begin(), codes.end(), 77u), static_cast<int64_t>(codes.size()) - 4);
}

// One KV head of two query heads, d 8, blocks in physical order 2, 0, 1, 3.
struct Select {
  Select(BlockSummary summary, std::vector<float> summaries, std::vector<float> queries)
      : plane(std::move(summaries)), q(std::move(queries)) {
    p.summary = summary;
    p.rows = 1;
    p.num_heads = static_cast<int32_t>(q.size()) / 8;
    p.kv_heads = 1;
    p.head_dim = 8;
    p.block_size = 8;
    p.q = q.data();
    p.row_seq = &zero;
    p.row_len = &len;
    p.k = &k;
    p.init_blocks = 0;
    p.local_blocks = 1;
    p.plane = plane.data();
    p.table = {table.data(), 4, 0};
    p.units = units.data();
    p.counts = &count;
    p.capacity = 4;
  }
  std::vector<int32_t> run() {
    ref::summary_select(p);
    return {units.begin(), units.begin() + count};
  }

  std::vector<float> plane, q;
  std::vector<int32_t> table = {2, 0, 1, 3}, units = std::vector<int32_t>(4, -9);
  int32_t zero = 0, len = 32, k = 2, count = -1;
  SummarySelectParams p;
};

// d values, zero but for the first.
std::vector<float> ones(std::initializer_list<float> firsts) {
  std::vector<float> out;
  for (float x : firsts) {
    out.push_back(x);
    out.insert(out.end(), 7, 0.0f);
  }
  return out;
}

TEST(SummarySelect, MeanTakesTheQueryAveragedOverTheGroup) {
  // Physical blocks 0..3 hold 5, 1, -6, 0: logical ones -6, 5, 1, 0.
  EXPECT_EQ(Select(BlockSummary::mean, ones({5, 1, -6, 0}), ones({1, 1})).run(), (std::vector<int32_t>{1, 3}));
  // -2 + 1 turns the order round; the best head alone would have kept block 1.
  EXPECT_EQ(Select(BlockSummary::mean, ones({5, 1, -6, 0}), ones({-2, 1})).run(), (std::vector<int32_t>{0, 3}));
}

TEST(SummarySelect, MinmaxIsTheBestCornerForTheBestHead) {
  // lo and hi of physical 0..3: [-1, 1], [-4, 0], [0, 3], [0, 0]; logical [0, 3], [-1, 1], [-4, 0], [0, 0].
  const auto boxes = ones({-1, 1, -4, 0, 0, 3, 0, 0});
  EXPECT_EQ(Select(BlockSummary::minmax, boxes, ones({1, 0})).run(), (std::vector<int32_t>{0, 3}));
  EXPECT_EQ(Select(BlockSummary::minmax, boxes, ones({-1, 0})).run(), (std::vector<int32_t>{2, 3}));
  Select both(BlockSummary::minmax, boxes, ones({1, -1}));
  EXPECT_EQ(both.run(), (std::vector<int32_t>{2, 3})) << "4 by the second head against 3 by the first";
  both.p.average_group = true;
  EXPECT_EQ(both.run(), (std::vector<int32_t>{0, 3})) << "the queries cancel: a tie, to the lower index";
}

TEST(SummarySelect, LengthsBelowKTakeAllAndAnEmptyRowNone) {
  Select s(BlockSummary::mean, ones({5, 1, -6, 0}), ones({1, 1}));
  s.k = 4;
  s.len = 17;
  EXPECT_EQ(s.run(), (std::vector<int32_t>{0, 1, 2}));
  s.len = 1;
  EXPECT_EQ(s.run(), (std::vector<int32_t>{0}));
  s.len = 0;
  EXPECT_TRUE(s.run().empty());
}

TEST(SummarySelect, MeanCodesChooseByTheNearestHead) {
  const HashRotation rotation = HashRotation::make(8, 64).value();
  Select s(BlockSummary::mean_code, {}, {1, 2, 3, 4, 5, 6, 7, -8, -1, 2, -3, 4, -5, 6, -7, 8});
  std::vector<uint64_t> codes(4, 0);
  ref::hash_encode(rotation.codec(), s.q.data() + 8, &codes[1]);  // logical block 2 is the second head's twin
  ref::hash_encode(rotation.codec(), s.q.data(), &codes[0]);      // logical block 1 nearly the first's
  codes[0] ^= 1;
  codes[2] = ~codes[1];
  s.p.mean_codes = codes.data();
  s.p.codec = rotation.codec();
  EXPECT_EQ(s.run(), (std::vector<int32_t>{2, 3}));
  s.k = 3;
  EXPECT_EQ(s.run(), (std::vector<int32_t>{1, 2, 3}));
}

TEST(BlockTopk, HeadsAloneOrBySumAndNanLast) {
  const std::vector<float> scores = {1, 5, kNan, 2, 0, 9,   // head 0; the last is no block of the row
                                     4, 0, 3,    2, 0, 9};  // head 1
  std::vector<int32_t> units(4, -9), counts(2, -9);
  const int32_t len = 5 * 8, k = 2;
  BlockTopkParams p;
  p.rows = 1;
  p.kv_heads = 2;
  p.block_size = 8;
  p.scores = scores.data();
  p.max_blocks = 6;
  p.row_len = &len;
  p.k = &k;
  p.init_blocks = 0;
  p.local_blocks = 1;
  p.units = units.data();
  p.counts = counts.data();
  p.capacity = 2;
  ref::block_topk(p);
  EXPECT_EQ(units, (std::vector<int32_t>{1, 4, 0, 4}));
  EXPECT_EQ(counts, (std::vector<int32_t>{2, 2}));
  p.share_heads = true;
  ref::block_topk(p);
  EXPECT_EQ(units[0], 0) << "5 and 5: a tie, to the lower index";
  EXPECT_EQ(units[1], 4);
}

// Mass from the keys as the problem holds them, in the plainest way.
TEST(AttentionMass, IsTheSoftmaxAddedUpOverBlocksAndGroup) {
  int walked = 0;
  for (const auto& shape : testing::attention_cases()) {
    if (shape.select || shape.window > 0) continue;  // some of their keys are not there
    SCOPED_TRACE(shape.name);
    testing::AttentionProblem problem(shape);
    const KvView& kv = problem.params().kv;
    std::vector<int32_t> row_seq, row_len;
    for (int32_t r = 0; r < problem.rows(); ++r) {
      row_seq.push_back(problem.row_seq(r));
      row_len.push_back(static_cast<int32_t>(std::max<int64_t>(0, problem.row_pos(r) + 1)));
    }
    const int32_t most = row_len.empty() ? 0 : *std::max_element(row_len.begin(), row_len.end());
    AttentionMassParams p;
    p.rows = problem.rows();
    p.num_heads = shape.heads;
    p.q = problem.q().data();
    p.row_seq = row_seq.data();
    p.row_len = row_len.data();
    p.kv = kv;
    p.scale = problem.params().scale;
    p.max_blocks = most / kv.block_size + 2;
    std::vector<float> mass(static_cast<size_t>(p.rows) * kv.kv_heads * p.max_blocks, kNan);
    p.mass = mass.data();
    ref::attention_mass(p);
    for (int32_t r = 0; r < p.rows; ++r) {
      std::vector<double> want(static_cast<size_t>(kv.kv_heads) * p.max_blocks, 0.0);
      for (int32_t h = 0; h < shape.heads; ++h) {
        const int32_t g = problem.kv_head_of(h);
        const auto& keys = problem.keys(row_seq[r]);
        const int32_t len = shape.seqs[row_seq[r]].len;
        std::vector<double> weight;
        double sum = 0;
        for (int32_t t = 0; t < row_len[r]; ++t) {
          double dot = 0;
          for (int32_t i = 0; i < kv.head_dim; ++i) {
            dot += double{problem.q()[(int64_t{r} * shape.heads + h) * kv.head_dim + i]} *
                   keys[(int64_t{g} * len + t) * kv.head_dim + i];
          }
          weight.push_back(std::exp(dot * p.scale));
          sum += weight.back();
        }
        for (int32_t t = 0; t < row_len[r]; ++t) want[g * p.max_blocks + t / kv.block_size] += weight[t] / sum;
      }
      for (size_t i = 0; i < want.size(); ++i) {
        ASSERT_NEAR(mass[r * want.size() + i], want[i], 1e-5) << "row " << r << " cell " << i;
      }
      ++walked;
    }
  }
  EXPECT_GT(walked, 50);
}

}  // namespace
}  // namespace fovea
